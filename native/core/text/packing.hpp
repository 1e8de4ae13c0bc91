// Documents packed into rows: the row of each piece, its tokens, and marks of whose they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace foreload {

// Pieces of documents in the order of rows and columns. They do not overlap, and end within their row.
struct PackedPieces {
  const int64_t* documents;
  const int64_t* columns;
  const int64_t* lengths;
  const int64_t* first;  // of each row, and of one after the last
};

// Chooses a row for each piece of 1 to `length` tokens: the longest first, each into the row where it leaves
// the least room. Rows are numbered in the order of their first pieces. Throws Error(value) for other
// lengths.
std::vector<int64_t> best_fit(std::span<const int64_t> lengths, int64_t length);

// Copies the tokens of a row, of which piece i begins at token `starts[i]` of its document, and pads it.
// Throws Error(value) if a piece is not in its document.
void copy_row(const PackedPieces& pieces, const int64_t* starts,
              std::span<const std::span<const int64_t>> documents, int64_t row, int64_t length, int64_t pad,
              int64_t* tokens);

// Fills a row's `length` document numbers (-1: padding) and positions, which count from 0 in each piece and
// in the padding.
void mark_row(const PackedPieces& pieces, int64_t row, int64_t length, int64_t* documents,
              int64_t* positions);

}  // namespace foreload
