// Permutations are those of the plain shuffle, however they are cut, one after the other from one generator.
#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "fisher_yates.hpp"

using foreload::FisherYates;

namespace {

void append_plain(std::mt19937& engine, int64_t n, std::vector<int64_t>& out) {
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (int64_t i = 0; i < n - 1; ++i) {
    const auto other = i + static_cast<int64_t>(engine()) % (n - i);
    std::swap(numbers[static_cast<size_t>(i)], numbers[static_cast<size_t>(other)]);
  }
  out.insert(out.end(), numbers.begin(), numbers.end());
}

}  // namespace

int main() {
  for (int64_t n : {1, 2, 3, 63, 64, 65, 129, 1000, 70001}) {
    const uint64_t seed = 0x1234567800000000u + static_cast<uint64_t>(n);
    std::mt19937 engine(static_cast<uint32_t>(seed));
    std::vector<int64_t> expected;
    for (int round = 0; round < 3; ++round) append_plain(engine, n, expected);
    for (size_t piece : {size_t{1}, size_t{7}, size_t{64}, size_t{1000}, expected.size()}) {
      FisherYates shuffle(static_cast<uint64_t>(n), seed);
      std::vector<int64_t> found(expected.size());
      for (size_t at = 0; at < found.size(); at += piece) {
        shuffle.fill(found.data() + at, std::min(piece, found.size() - at));
      }
      CHECK(found == expected);
    }
  }
  CHECK_THROWS(FisherYates(0, 1), value);
  CHECK_THROWS(FisherYates(FisherYates::kEnd, 1), value);
}
