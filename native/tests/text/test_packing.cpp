// Documents packed into rows, and marks of whose the tokens are.
#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "packing.hpp"

namespace {

using Numbers = std::vector<int64_t>;

// The rows by the definition of best fit, as rows of the pieces in the order of their lengths.
Numbers expected_rows(const Numbers& lengths, int64_t length) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  Numbers room, sums(lengths.size());
  for (const size_t piece : order) {
    size_t best = room.size();
    for (size_t row = 0; row < room.size(); ++row) {
      if (room[row] >= lengths[piece] && (best == room.size() || room[row] < room[best])) best = row;
    }
    if (best == room.size()) room.push_back(length);
    room[best] -= lengths[piece];
  }
  std::sort(room.begin(), room.end());
  return room;
}

void test_best_fit() {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int64_t length = 1 + static_cast<int64_t>(random() % 200);
    Numbers lengths(random() % 80);
    for (int64_t& each : lengths) each = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(length));
    const Numbers rows = foreload::best_fit(lengths, length);
    int64_t known = 0;
    for (const int64_t row : rows) {
      CHECK(row >= 0 && row <= known);  // numbered in the order of their first pieces
      known = std::max(known, row + 1);
    }
    Numbers room(static_cast<size_t>(known), length);
    for (size_t i = 0; i < rows.size(); ++i) room[static_cast<size_t>(rows[i])] -= lengths[i];
    std::sort(room.begin(), room.end());
    CHECK(room == expected_rows(lengths, length));
  }
  CHECK_THROWS(foreload::best_fit(Numbers{4}, 3), value);
  CHECK_THROWS(foreload::best_fit(Numbers{0}, 3), value);
}

void test_copied_rows() {
  const Numbers first_document{1, 2, 3, 4}, second{5, 6};
  const std::vector<std::span<const int64_t>> documents{first_document, second};
  const Numbers numbers{1, 0}, columns{1, 3}, lengths{2, 2}, first{0, 2}, starts{0, 1};
  const foreload::PackedPieces pieces{numbers.data(), columns.data(), lengths.data(), first.data()};
  Numbers tokens(6, 99);
  foreload::copy_row(pieces, starts.data(), documents, 0, 6, -7, tokens.data());
  CHECK(tokens == (Numbers{-7, 5, 6, 2, 3, -7}));
  for (const Numbers& wrong : {Numbers{1, 0}, Numbers{0, 3}, Numbers{0, -1}}) {
    CHECK_THROWS(foreload::copy_row(pieces, wrong.data(), documents, 0, 6, -7, tokens.data()), value);
  }
}

}  // namespace

int main() {
  test_best_fit();
  test_copied_rows();
  // Row 0: document 4 (two tokens), document 7 (one), padding; row 1: padding; row 2: padding, document 9.
  const std::vector<int64_t> documents{4, 7, 9}, columns{0, 2, 3}, lengths{2, 1, 2}, first{0, 2, 2, 3};
  const foreload::PackedPieces pieces{documents.data(), columns.data(), lengths.data(), first.data()};
  const std::vector<std::vector<int64_t>> marks{{4, 4, 7, -1, -1}, {-1, -1, -1, -1, -1}, {-1, -1, -1, 9, 9}};
  const std::vector<std::vector<int64_t>> counts{{0, 1, 0, 0, 1}, {0, 1, 2, 3, 4}, {0, 1, 2, 0, 1}};
  for (int64_t row = 0; row < 3; ++row) {
    std::vector<int64_t> marked(5, 99), counted(5, 99);
    foreload::mark_row(pieces, row, 5, marked.data(), counted.data());
    CHECK(marked == marks[static_cast<size_t>(row)]);
    CHECK(counted == counts[static_cast<size_t>(row)]);
  }
}
