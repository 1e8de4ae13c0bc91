#include "packing.hpp"

#include <algorithm>
#include <numeric>

#include "bit_tree.hpp"
#include "error.hpp"

namespace foreload {

namespace {

int64_t mark(int64_t begin, int64_t end, int64_t document, int64_t* documents, int64_t* positions) {
  for (int64_t i = begin; i < end; ++i) {
    documents[i] = document;
    positions[i] = i - begin;
  }
  return end;
}

}  // namespace

std::vector<int64_t> best_fit(std::span<const int64_t> lengths, int64_t length) {
  for (const int64_t piece : lengths) {
    if (piece < 1 || piece > length) throw Error(ErrorKind::value, "a piece must fit into a row");
  }
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  // The rows of which so many tokens are used: the last one that became so, and for each row the one before
  // it.
  std::vector<int64_t> last(static_cast<size_t>(length), -1), before;
  BitTree some(static_cast<size_t>(length));
  std::vector<int64_t> chosen(lengths.size());
  for (const size_t piece : order) {
    const auto size = static_cast<size_t>(lengths[piece]);
    size_t used = some.last_until(static_cast<size_t>(length) - size);
    auto row = static_cast<int64_t>(before.size());
    if (used == BitTree::kNone) {
      used = 0;
      before.push_back(-1);
    } else {
      row = last[used];
      last[used] = before[static_cast<size_t>(row)];
      if (last[used] < 0) some.erase(used);
    }
    used += size;
    if (used < static_cast<size_t>(length)) {
      before[static_cast<size_t>(row)] = last[used];
      last[used] = row;
      some.insert(used);
    }
    chosen[piece] = row;
  }
  std::vector<int64_t> numbers(before.size(), -1);
  int64_t known = 0;
  for (int64_t& row : chosen) {
    int64_t& number = numbers[static_cast<size_t>(row)];
    if (number < 0) number = known++;
    row = number;
  }
  return chosen;
}

void copy_row(const PackedPieces& pieces, const int64_t* starts,
              std::span<const std::span<const int64_t>> documents, int64_t row, int64_t length, int64_t pad,
              int64_t* tokens) {
  int64_t end = 0;
  for (int64_t i = pieces.first[row]; i < pieces.first[row + 1]; ++i) {
    const auto number = static_cast<size_t>(pieces.documents[i]);
    const auto start = static_cast<size_t>(starts[i]), size = static_cast<size_t>(pieces.lengths[i]);
    if (number >= documents.size() || start > documents[number].size() ||
        size > documents[number].size() - start) {
      throw Error(ErrorKind::value, "a piece lies outside its document");
    }
    std::fill(tokens + end, tokens + pieces.columns[i], pad);
    end = pieces.columns[i] + pieces.lengths[i];
    std::copy_n(documents[number].data() + start, size, tokens + pieces.columns[i]);
  }
  std::fill(tokens + end, tokens + length, pad);
}

void mark_row(const PackedPieces& pieces, int64_t row, int64_t length, int64_t* documents,
              int64_t* positions) {
  int64_t end = 0;
  for (int64_t i = pieces.first[row]; i < pieces.first[row + 1]; ++i) {
    const int64_t begin = pieces.columns[i];
    mark(end, begin, -1, documents, positions);
    end = mark(begin, begin + pieces.lengths[i], pieces.documents[i], documents, positions);
  }
  mark(end, length, -1, documents, positions);
}

}  // namespace foreload
