// Copies rows to a contiguous destination.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

// Checks indices. Throws Error(index), naming the first one outside [-rows, rows).
void check_indices(const int64_t* indices, size_t count, int64_t rows);

// out row i = source row indices[i]; negative indices count from the end. Indices must have been checked.
void gather(const void* source, int64_t rows, size_t row_bytes, const int64_t* indices, size_t count,
            void* out);

// out row i = the row at addresses[i]. By up to `threads` threads, of which the calling one is the first, if
// there is enough to copy.
void gather_from(size_t threads, const int64_t* addresses, size_t row_bytes, size_t count, void* out);

// As gather, by up to `threads` threads, likewise.
void gather_by(size_t threads, const void* source, int64_t rows, size_t row_bytes, const int64_t* indices,
               size_t count, void* out);

}  // namespace foreload
