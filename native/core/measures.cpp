// What a store has measured of its samples: requests, sizes and costs.
#include <algorithm>

#include "store.hpp"

namespace foreload {

void SampleStore::note_cost(size_t sample, uint64_t nanoseconds) {
  SampleEntry& entry = entries_[sample];
  entry.cost_before.store(entry.cost.exchange(std::max<uint64_t>(1, nanoseconds)), std::memory_order_relaxed);
}

void SampleStore::note_size(size_t sample, size_t size) {
  uint64_t unknown = 0;
  entries_[sample].size_and_form.compare_exchange_strong(unknown, uint64_t{size} << 2);
}

bool SampleStore::is_measured(size_t sample) const {
  return entries_[sample].size_and_form.load(std::memory_order_relaxed) != 0;
}

void SampleStore::uses(int64_t* out) const {
  for (size_t i = 0; i < samples(); ++i)
    out[i] = static_cast<int64_t>(SampleEntry::use_of(entries_[i].word.load(std::memory_order_relaxed)));
}

void SampleStore::sizes(int64_t* out) const {
  for (size_t i = 0; i < samples(); ++i) {
    const uint64_t size_and_form = entries_[i].size_and_form.load(std::memory_order_relaxed);
    out[i] = size_and_form == 0 ? 0 : static_cast<int64_t>(Arena::block_size(size_and_form >> 2));
  }
}

void SampleStore::costs(int64_t* last, int64_t* before) const {
  for (size_t i = 0; i < samples(); ++i) {
    last[i] = static_cast<int64_t>(entries_[i].cost.load(std::memory_order_relaxed));
    before[i] = static_cast<int64_t>(entries_[i].cost_before.load(std::memory_order_relaxed));
  }
}

}  // namespace foreload
