#include "owned.hpp"

#include <string>

#include "error.hpp"

namespace foreload {

bool Owned::assign(uint64_t samples, Key key, uint64_t ranks, const int64_t* own, size_t count,
                   uint64_t limit) {
  if (ranks == 0 || ranks > kMostRanks) {
    throw Error(ErrorKind::value,
                "ranks must be from 1 to " + std::to_string(kMostRanks) + ", got " + std::to_string(ranks));
  }
  if (ranks_ == 0) {
    permutation_ = Permutation(samples, key);
    samples_ = samples;
    key_ = key;
    ranks_ = ranks;
  } else if (samples_ != samples || ranks_ != ranks || key_.seed != key.seed || key_.epoch != key.epoch) {
    throw Error(ErrorKind::value, "a store follows one router, and this is another one");
  }
  std::array<uint64_t, kMostRanks / 64> bits{};
  for (size_t i = 0; i < count; ++i) {
    if (own[i] < 0 || static_cast<uint64_t>(own[i]) >= ranks)
      throw Error(ErrorKind::value, "there is no rank " + std::to_string(own[i]));
    bits[static_cast<size_t>(own[i]) / 64] |= uint64_t{1} << (own[i] % 64);
  }
  bool are_others = false;
  for (size_t i = 0; i < bits.size(); ++i)
    are_others |= is_own_[i].exchange(bits[i], std::memory_order_relaxed) != bits[i];
  limit_.store(limit, std::memory_order_relaxed);
  return are_others;
}

bool Owned::has(uint64_t sample) const {
  const uint64_t position = permutation_.inverse(sample), owner = position % ranks_;
  return position < limit_.load(std::memory_order_relaxed) &&
         ((is_own_[owner / 64].load(std::memory_order_relaxed) >> (owner % 64)) & 1) != 0;
}

}  // namespace foreload
