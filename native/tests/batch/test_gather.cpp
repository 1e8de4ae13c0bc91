// Rows are copied to where they belong, and bad indices are named.
#include <cstring>
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "gather.hpp"

int main() {
  const std::vector<int64_t> indices{4, 0, -1, -5, 2, 2};
  for (size_t width : {1, 2, 3, 4, 8, 13, 64, 400, 1000}) {
    std::vector<uint8_t> source(5 * width), out(indices.size() * width);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 7);
    foreload::gather(source.data(), 5, width, indices.data(), indices.size(), out.data());
    for (size_t i = 0; i < indices.size(); ++i) {
      const size_t row = static_cast<size_t>(indices[i] < 0 ? indices[i] + 5 : indices[i]);
      CHECK(std::memcmp(out.data() + i * width, source.data() + row * width, width) == 0);
    }
    std::vector<int64_t> addresses;
    for (const int64_t index : indices) {
      const size_t row = static_cast<size_t>(index < 0 ? index + 5 : index);
      addresses.push_back(reinterpret_cast<int64_t>(source.data() + row * width));
    }
    std::vector<uint8_t> same(out.size());
    foreload::gather_from(1, addresses.data(), width, addresses.size(), same.data());
    CHECK(same == out);
  }
  // Several threads copy the same, whatever the share of each.
  const size_t width = 100'003;
  std::vector<uint8_t> source(50 * width), alone(97 * width);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * i >> 5);
  std::vector<int64_t> places(97);
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(i * 31 % 100) - 50;
  foreload::gather(source.data(), 50, width, places.data(), places.size(), alone.data());
  for (size_t threads : {0, 1, 2, 3, 4, 64}) {
    std::vector<uint8_t> together(97 * width);
    foreload::gather_by(threads, source.data(), 50, width, places.data(), places.size(), together.data());
    CHECK(together == alone);
    std::vector<int64_t> addresses;
    for (const int64_t place : places) {
      const size_t row = static_cast<size_t>(place < 0 ? place + 50 : place);
      addresses.push_back(reinterpret_cast<int64_t>(source.data() + row * width));
    }
    std::vector<uint8_t> from(97 * width);
    foreload::gather_from(threads, addresses.data(), width, addresses.size(), from.data());
    CHECK(from == alone);
  }
  foreload::check_indices(indices.data(), indices.size(), 5);
  CHECK_THROWS(foreload::check_indices(indices.data(), indices.size(), 4), index);
}
