#include "schedule.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "error.hpp"

namespace foreload {

namespace {

constexpr size_t words_for(size_t accesses) {
  return (accesses + 63) / 64 + 1;
}

}  // namespace

size_t Schedule::bytes(size_t samples, size_t accesses) {
  return (samples + 1 + words_for(accesses)) * sizeof(uint64_t);
}

Schedule::Schedule(State* state, uint8_t* memory)
    : state_(state),
      offsets_(reinterpret_cast<std::atomic<uint64_t>*>(memory)),
      bits_(offsets_ + state->samples + 1) {}

void Schedule::follow(const int64_t* accesses, size_t count, const uint8_t* keep) {
  if (count > state_->accesses) {
    throw Error(ErrorKind::value, "a schedule of " + std::to_string(count) +
                                      " accesses in a store with room for " +
                                      std::to_string(state_->accesses));
  }
  const size_t samples = state_->samples;
  std::vector<uint64_t> place(samples + 1, 0);
  for (size_t t = 0; t < count; ++t) ++place[static_cast<size_t>(accesses[t]) + 1];
  for (size_t i = 0; i < samples; ++i) place[i + 1] += place[i];
  for (size_t i = 0; i <= samples; ++i) offsets_[i].store(place[i], std::memory_order_relaxed);
  std::vector<uint64_t> bits(count / 64 + 1, 0);
  for (size_t t = 0; t < count; ++t) {
    const uint64_t bit = place[static_cast<size_t>(accesses[t])]++;
    if (keep[t] != 0) bits[bit / 64] |= uint64_t{1} << (bit % 64);
  }
  for (size_t i = 0; i < bits.size(); ++i) bits_[i].store(bits[i], std::memory_order_relaxed);
  state_->by_access = 1;
}

void Schedule::follow(const uint8_t* members) {
  const size_t samples = state_->samples;
  for (size_t word = 0; word * 64 < samples; ++word) {
    uint64_t bits = 0;
    for (size_t i = word * 64; i < std::min(samples, word * 64 + 64); ++i) {
      if (members[i] != 0) bits |= uint64_t{1} << (i % 64);
    }
    bits_[word].store(bits, std::memory_order_relaxed);
  }
  state_->by_access = 0;
}

}  // namespace foreload
