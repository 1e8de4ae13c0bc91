// Swaps of samples between ranks within a global batch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

// Which samples of a global batch each rank loads. The owner of a sample is the rank `position % ranks`.
// Samples go to their owners, lowest positions first, until each has its number; the others fill the places
// left, in the order of the batch, first rank first.
//
// `positions` of the samples: those of the first rank, then those of the next one and so on; `lengths` per
// rank, `count` in all. `order` receives as many indices into the batch, rank by rank, ascending within each.
// Throws Error(value) if the lengths are not `count` in all, and Error(index) for a negative position.
void route(const int64_t* positions, size_t count, const int64_t* lengths, size_t ranks, int64_t* order);

}  // namespace foreload
