// The plan of a cache: which samples it keeps, computed before the epoch starts.
//
// A plan is one bit per access: whether the sample stays cached until its next access. Every policy compiles
// to it, since a sample that is dropped before its next access need not have been kept. An access is a hit
// exactly if the previous access of the same sample has the bit set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

// The accesses that are known ahead, and the size and cost of each sample.
struct Trace {
  const int64_t* accesses = nullptr;  // the samples, in order
  size_t count = 0;
  size_t samples = 0;
  const int64_t* sizes = nullptr;     // bytes per sample; null: 1 each
  const double* costs = nullptr;      // seconds that a hit saves, per sample; null: 1 each
  const uint8_t* resident = nullptr;  // bool per sample: cached when the trace begins; null: none

  int64_t size(size_t sample) const { return sizes == nullptr ? 1 : sizes[sample]; }
  double cost(size_t sample) const { return costs == nullptr ? 1.0 : costs[sample]; }
};

struct Plan {
  uint8_t* hits = nullptr;      // bool per access
  uint8_t* keep = nullptr;      // bool per access
  uint8_t* retained = nullptr;  // bool per sample: a resident that stays cached until its first access
};

enum class Policy { opt, lru, fifo, lfu, random };

// Compiles `policy` for a cache of `budget` bytes. All of `plan` is written. Throws Error(value) for a
// negative size and Error(index) for an access that is no sample. With `tail`, what is left of the budget at
// the end of the trace is filled with the samples used last, which may be used again.
//
// opt: the most hits that any policy can reach (Belady's MIN with bypass) if all sizes and costs are equal.
// Otherwise a schedule of intervals by local ratio (Bar-Noy et al., JACM 48(5), 2001), filled up in the order
// of next uses: at least half of the most cost that can be saved if no sample is over half of the budget, at
// least a third in any case. The others do what cachetools' caches of these names do, with the sizes as
// getsizeof.
void compile(const Trace& trace, Policy policy, int64_t budget, bool tail, uint64_t seed, const Plan& plan);

}  // namespace foreload
