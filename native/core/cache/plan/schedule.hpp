// The plan's decisions, one bit for each, in memory that processes share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace foreload {

class Schedule {
 public:
  struct State {
    uint64_t samples, accesses;       // what there is room for
    std::atomic<uint32_t> by_access;  // there is a bit per access, not per sample
    std::atomic<uint64_t> unforeseen;
  };

  // The memory that bits for so many accesses take.
  static size_t bytes(size_t samples, size_t accesses);

  Schedule() = default;
  Schedule(State* state, uint8_t* memory);

  // From here on, the n-th request of a sample has the bit of its n-th access: keep[t] for accesses[t].
  // Throws Error(value) if there is no room for as many.
  void follow(const int64_t* accesses, size_t count, const uint8_t* keep);
  // The same for samples that are accessed once per epoch: each request of a sample has its one bit.
  void follow(const uint8_t* members);

  bool is_by_access() const { return state_->by_access.load(std::memory_order_relaxed) != 0; }

  // Whether the sample is kept when it was requested `use` times before. Beyond the last access, what is
  // present stays.
  bool keeps(size_t sample, uint64_t use, bool present) const {
    uint64_t bit = sample;
    if (is_by_access()) {
      const uint64_t begin = offsets_[sample].load(std::memory_order_relaxed);
      const uint64_t end = offsets_[sample + 1].load(std::memory_order_relaxed);
      bit = begin + use;
      if (bit >= end || bit >= state_->accesses) {
        state_->unforeseen.fetch_add(1, std::memory_order_relaxed);
        return present;
      }
    }
    return ((bits_[bit / 64].load(std::memory_order_relaxed) >> (bit % 64)) & 1) != 0;
  }

 private:
  State* state_ = nullptr;
  std::atomic<uint64_t>* offsets_ = nullptr;  // of each sample's bits
  std::atomic<uint64_t>* bits_ = nullptr;
};

}  // namespace foreload
