// The samples that a router gives to some of its ranks, in memory that processes share: a keyed permutation
// gives every sample a position, and its owner is the rank `position % ranks`.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "order.hpp"

namespace foreload {

class Owned {
 public:
  static constexpr uint64_t kMostRanks = 1 << 16;

  // Own the samples of position below `limit` that belong to these ranks. Throws Error(value) if there are
  // more than kMostRanks ranks, or if samples, key or number of ranks are others than in the call before:
  // others may be reading them. Called by one process at a time. Returns whether the ranks are others than
  // before.
  bool assign(uint64_t samples, Key key, uint64_t ranks, const int64_t* own, size_t count, uint64_t limit);
  bool has(uint64_t sample) const;

 private:
  uint64_t samples_ = 0, ranks_ = 0;
  Key key_;
  Permutation permutation_;
  std::atomic<uint64_t> limit_{0};
  std::array<std::atomic<uint64_t>, kMostRanks / 64> is_own_{};
};

}  // namespace foreload
