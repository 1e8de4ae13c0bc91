// Rows of a contiguous source, copied to a contiguous destination.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

// Throws Error(index), naming the first index outside [-rows, rows), before anything is written.
void check_indices(const int64_t* indices, size_t count, int64_t rows);

// out row i = source row indices[i]; negative indices count from the end. Indices must have been checked.
void gather(const void* source, int64_t rows, size_t row_bytes, const int64_t* indices, size_t count,
            void* out);

}  // namespace foreload
