// The samples of a store: their states, and dropping them.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "store_header.hpp"

namespace foreload {

namespace {

bool is_present(const SampleEntry& entry) {
  return SampleEntry::state_of(entry.word.load()) == SampleEntry::present;
}

}  // namespace

std::unique_ptr<uint8_t[]> SampleStore::copy_hit(size_t sample, size_t most, size_t& size) {
  const std::optional<size_t> slot = sample < samples() ? reclaimer_.try_enter() : std::nullopt;
  if (!slot) return nullptr;
  const Section section(*this, *slot);
  SampleEntry* const entry = entries_.find(sample);
  if (entry == nullptr) return nullptr;
  uint64_t word = entry->word.load();
  const uint64_t block = entry->block.load();
  size = SampleEntry::size_of(entry->size_and_form.load());
  // (As in request(): kept anew meanwhile, it has another block.)
  if (SampleEntry::state_of(word) != SampleEntry::present || block == 0 || size > most ||
      entry->block.load() != block || !keeps(sample, SampleEntry::use_of(word), true))
    return nullptr;
  std::unique_ptr<uint8_t[]> copy(new uint8_t[std::max<size_t>(1, size)]);
  const uint64_t used = SampleEntry::word_of(SampleEntry::present, SampleEntry::use_of(word) + 1);
  if (!entry->word.compare_exchange_strong(word, used)) return nullptr;
  reclaimer_.slot(*slot).hits.fetch_add(1, std::memory_order_relaxed);
  if (rule() == Rule::recent) entry->stamp = header_->stamps.fetch_add(1) + 1;
  std::memcpy(copy.get(), arena().bytes(block - 1), size);
  return copy;
}

void SampleStore::note_cost(size_t sample, uint64_t nanoseconds) {
  const Section section(*this);
  SampleEntry* const entry = entries_.find(sample);
  if (entry == nullptr) return;
  entry->cost_before.store(entry->cost.exchange(std::max<uint64_t>(1, nanoseconds)),
                           std::memory_order_relaxed);
}

void SampleStore::note_size(size_t sample, size_t size) {
  const Section section(*this);
  SampleEntry* const entry = entries_.find(sample);
  uint64_t unknown = 0;
  if (entry != nullptr)
    entry->size_and_form.compare_exchange_strong(unknown, SampleEntry::described(size, 0));
}

bool SampleStore::is_measured(size_t sample) const {
  return is_hashed() || entries_.find(sample)->size_and_form.load(std::memory_order_relaxed) != 0;
}

void SampleStore::uses(int64_t* out) const {
  if (is_hashed()) std::fill_n(out, samples(), 0);
  entries_.each([&](size_t sample, const SampleEntry& entry) {
    out[sample] = static_cast<int64_t>(SampleEntry::use_of(entry.word.load(std::memory_order_relaxed)));
    return true;
  });
}

void SampleStore::sizes(int64_t* out) const {
  if (is_hashed()) std::fill_n(out, samples(), 0);
  entries_.each([&](size_t sample, const SampleEntry& entry) {
    const uint64_t size_and_form = entry.size_and_form.load(std::memory_order_relaxed);
    out[sample] =
        size_and_form == 0 ? 0 : static_cast<int64_t>(Arena::block_size(SampleEntry::size_of(size_and_form)));
    return true;
  });
}

void SampleStore::costs(int64_t* last, int64_t* before) const {
  if (is_hashed()) std::fill_n(last, samples(), 0), std::fill_n(before, samples(), 0);
  entries_.each([&](size_t sample, const SampleEntry& entry) {
    last[sample] = static_cast<int64_t>(entry.cost.load(std::memory_order_relaxed));
    before[sample] = static_cast<int64_t>(entry.cost_before.load(std::memory_order_relaxed));
    return true;
  });
}

bool SampleStore::contains(size_t sample) {
  const Section section(*this);
  const SampleEntry* const entry = entries_.find(sample);
  return entry != nullptr && is_present(*entry);
}

void SampleStore::residents(uint8_t* out) const {
  if (is_hashed()) std::fill_n(out, samples(), uint8_t{0});
  entries_.each([&](size_t sample, const SampleEntry& entry) {
    out[sample] = is_present(entry) ? 1 : 0;
    return true;
  });
}

void SampleStore::drop(size_t sample) {
  const Section section(*this);
  SampleEntry* const entry = entries_.find(sample);
  if (entry == nullptr) return;
  for (;;) {
    uint64_t word = entry->word.load();
    if (SampleEntry::state_of(word) != SampleEntry::present) return;
    const uint64_t block = entry->block.load();
    if (entry->word.compare_exchange_strong(
            word, SampleEntry::word_of(SampleEntry::absent, SampleEntry::use_of(word)))) {
      header_->entries.fetch_sub(1);
      release(*entry, block);
      return;
    }
  }
}

void SampleStore::clear() {
  entries_.each([&](size_t sample, const SampleEntry&) {
    drop(sample);
    return true;
  });
}

// Who follows a plan calls it before it drops samples, and who keeps a sample, before it looks at the plan:
// one of them comes first, so either the sample is seen by who drops, or the plan by who keeps.
void SampleStore::meet_plans() {
  header_->meeting.fetch_add(1);
}

// Whether a sample that has just been kept stays, by the present plan. One of accesses counts a sample's uses
// from its beginning on, so one without any was claimed before. (If it was there, and is being kept in
// another form just then, it is loaded once more.)
bool SampleStore::stays(size_t sample, const SampleEntry& entry) const {
  if (rule() == Rule::planned && schedule_.is_by_access()) return SampleEntry::use_of(entry.word.load()) != 0;
  return keeps(sample, 0, true);
}

// Drops what a plan of members, or of owners, does not keep.
void SampleStore::drop_others() {
  entries_.each([&](size_t sample, const SampleEntry& entry) {
    if (is_present(entry) && !keeps(sample, 0, true)) drop(sample);
    return true;
  });
}

// Takes out entries of samples that were dropped. Under the lock.
void SampleStore::erase_absent() {
  entries_.each([&](size_t sample, SampleEntry& entry) {
    erase_if_absent(sample, entry);
    return true;
  });
}

void SampleStore::erase_if_absent(size_t sample, SampleEntry& entry) {
  uint64_t word = entry.word.load();
  while (SampleEntry::state_of(word) == SampleEntry::absent) {
    if (entry.word.compare_exchange_strong(word, SampleEntry::word_of(SampleEntry::gone, 0))) {
      entries_.erase(sample, reclaimer_);
      return;
    }
  }
}

// Drops the least recently used sample; false if there is none. One pass over all of them finds the next
// several: stamps only grow, so one that has not changed is still older than all that were not listed. Under
// the lock.
bool SampleStore::evict_oldest() {
  for (int pass = 0; pass < 2; ++pass) {
    while (!oldest_.empty()) {
      const auto [stamp, sample] = oldest_.back();
      oldest_.pop_back();
      SampleEntry* const entry = entries_.find(sample);
      if (entry != nullptr && is_present(*entry) && entry->stamp.load() == stamp) {
        drop(sample);
        if (is_hashed()) erase_if_absent(sample, *entry);
        return true;
      }
    }
    entries_.each([&](size_t sample, const SampleEntry& entry) {
      if (is_present(entry)) oldest_.emplace_back(entry.stamp.load(), sample);
      return true;
    });
    const size_t some =
        std::min(oldest_.size(), std::max(oldest_.size() / 16 + 1, is_hashed() ? 0 : samples() / 64));
    std::nth_element(oldest_.begin(), oldest_.begin() + static_cast<ptrdiff_t>(some > 0 ? some - 1 : 0),
                     oldest_.end());
    oldest_.resize(some);
    std::sort(oldest_.rbegin(), oldest_.rend());
  }
  return false;
}

void SampleStore::limit(size_t bytes) {
  header_->limit = std::min<uint64_t>(bytes, header_->arena.size);
  const uint64_t used = header_->arena.used, room = header_->limit;
  uint64_t dropped = 0;
  entries_.each_backward([&](size_t sample, const SampleEntry& entry) {
    if (used <= room + dropped) return false;
    if (!is_present(entry)) return true;
    dropped += Arena::block_size(SampleEntry::size_of(entry.size_and_form.load()));
    drop(sample);
    return true;
  });
  const ProcessMutex::Lock lock(header_->mutex, header_->frozen);
  if (header_->frozen.load() != 0) return;
  reclaimer_.reclaim();
  arena().each_free([this](uint64_t offset, uint64_t size) { segment_->discard(memory_ + offset, size); });
}

}  // namespace foreload
