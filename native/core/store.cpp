#include "store.hpp"

#include <algorithm>
#include <new>

#include "error.hpp"
#include "process.hpp"
#include "process_mutex.hpp"

namespace foreload {

namespace {

// Samples that workers may be ahead of, or behind, the order that was planned.
constexpr uint64_t kInFlight = 1024;

constexpr size_t aligned(size_t size) {
  return (size + 4095) / 4096 * 4096;
}

}  // namespace

struct SampleStore::Header {
  uint64_t samples, max_samples;  // of the dataset, and in the store; 0: any number
  std::atomic<uint32_t> rule;
  std::atomic<uint64_t> stamps;   // of uses, for `recent`
  std::atomic<uint32_t> changes;  // counts what a process may be waiting for
  std::atomic<uint32_t> waiting;
  std::atomic<uint64_t> kept, refused, waits, entries;
  std::atomic<uint64_t> owner;
  std::atomic<uint32_t> told;
  std::atomic<uint64_t> due;
  Spill::Counts spill;
  // A process died while it held the mutex. What is cached stays good, but nothing new is kept, since the
  // arena's free lists may be half changed.
  std::atomic<uint32_t> frozen;
  std::atomic<uint64_t> limit;  // of what blocks may take
  Schedule::State schedule;
  Reclaimer::State reclaimer;
  alignas(64) ProcessMutex mutex;  // guards the arena
  Arena::State arena;
};

SampleStore::SampleStore(std::unique_ptr<Segment> segment) : segment_(std::move(segment)) {}

std::shared_ptr<SampleStore> SampleStore::create(size_t samples, size_t bytes, size_t accesses,
                                                 size_t max_samples) {
  accesses = std::max(accesses, samples);
  const size_t total = aligned(sizeof(Header)) + Reclaimer::kSlots * sizeof(Reclaimer::Slot) +
                       aligned(samples * sizeof(SampleEntry)) + aligned(Schedule::bytes(samples, accesses)) +
                       aligned(samples * 8) + aligned(bytes);
  std::shared_ptr<SampleStore> store(new SampleStore(Segment::create(total)));
  auto* const header = new (store->segment_->memory()) Header{};
  header->samples = samples;
  header->max_samples = max_samples;
  header->rule = static_cast<uint32_t>(Rule::all);
  header->schedule.samples = samples;
  header->schedule.accesses = accesses;
  header->mutex.format();
  store->lay_out();
  store->reclaimer_.format();
  store->arena().format(bytes);
  header->limit = header->arena.size;
  return store;
}

std::shared_ptr<SampleStore> SampleStore::open(int file) {
  std::shared_ptr<SampleStore> store(new SampleStore(Segment::open(file)));
  store->lay_out();
  return store;
}

void SampleStore::lay_out() {
  uint8_t* at = segment_->memory();
  header_ = reinterpret_cast<Header*>(at);
  at += aligned(sizeof(Header));
  auto* const slots = reinterpret_cast<Reclaimer::Slot*>(at);
  at += Reclaimer::kSlots * sizeof(Reclaimer::Slot);
  entries_ = reinterpret_cast<SampleEntry*>(at);
  at += aligned(header_->samples * sizeof(SampleEntry));
  schedule_ = Schedule(&header_->schedule, at);
  at += aligned(Schedule::bytes(header_->samples, header_->schedule.accesses));
  spilled_ = reinterpret_cast<std::atomic<uint64_t>*>(at);
  at += aligned(header_->samples * 8);
  memory_ = at;
  reclaimer_ = Reclaimer(&header_->reclaimer, slots, arena());
}

size_t SampleStore::samples() const {
  return header_->samples;
}

Arena SampleStore::arena() const {
  return Arena(&header_->arena, memory_);
}

Rule SampleStore::rule() const {
  return static_cast<Rule>(header_->rule.load(std::memory_order_relaxed));
}

void SampleStore::follow(const int64_t* accesses, size_t count, const uint8_t* keep,
                         const uint8_t* retained) {
  schedule_.follow(accesses, count, keep);
  follow(Rule::planned);
  for (size_t i = 0; i < header_->samples; ++i) {
    if (retained[i] == 0) drop(i);
    entries_[i].reset_use();
  }
}

void SampleStore::follow(const uint8_t* members) {
  schedule_.follow(members);
  follow(Rule::planned);
  for (size_t i = 0; i < header_->samples; ++i) {
    if (members[i] == 0) drop(i);
  }
}

void SampleStore::follow(Rule rule) {
  header_->rule = static_cast<uint32_t>(rule);
}

SampleStore::Section::Section(SampleStore& store) : store_(store), slot_(store.reclaimer_.enter()) {}

SampleStore::Section::~Section() {
  store_.reclaimer_.leave(slot_);
  if (store_.header_->waiting.load() != 0) store_.wake();
}

// Drops an entry's memory, once: of all callers that find a block there, the one that takes it out of the
// entry. Called within a section begun before `block` was read, or by the process that has claimed the entry,
// so that the block cannot have come back.
void SampleStore::release(SampleEntry& entry, uint64_t block) {
  if (block != 0 && entry.block.compare_exchange_strong(block, 0)) reclaimer_.retire(block - 1);
}

SampleStore::Found SampleStore::request(Section& section, size_t sample, bool wait) {
  if (sample >= header_->samples)
    throw Error(ErrorKind::index, "the cache knows no sample " + std::to_string(sample));
  SampleEntry& entry = entries_[sample];
  Reclaimer::Slot& slot = reclaimer_.slot(section.slot_);
  bool counted_wait = false;
  for (;;) {
    uint64_t word = entry.word.load();
    const SampleEntry::State state = SampleEntry::state_of(word);
    if (state == SampleEntry::loading) {
      if (!wait && is_alive(SampleEntry::owner_of(word))) return {Outcome::busy, nullptr, 0, Form::packed};
      if (!counted_wait) header_->waits.fetch_add(1, std::memory_order_relaxed);
      counted_wait = true;
      wait_for(section.slot_, entry, word);
      if (entry.word.load() == word && !is_alive(SampleEntry::owner_of(word))) recover(sample, word);
      continue;
    }
    const uint64_t block = entry.block.load(), size_and_form = entry.size_and_form.load();
    const bool keep = rule() != Rule::planned ||
                      schedule_.keeps(sample, SampleEntry::use_of(word), state == SampleEntry::present);
    const uint64_t use = SampleEntry::use_of(word) + 1;
    if (state == SampleEntry::present) {
      if (!entry.word.compare_exchange_strong(
              word, SampleEntry::word_of(keep ? SampleEntry::present : SampleEntry::absent, use)))
        continue;
      slot.hits.fetch_add(1, std::memory_order_relaxed);
      if (rule() == Rule::recent) entry.stamp = header_->stamps.fetch_add(1) + 1;
      if (!keep) {
        header_->entries.fetch_sub(1);
        release(entry, block);
      }
      return {Outcome::hit, arena().bytes(block - 1), size_and_form >> 2,
              static_cast<Form>(size_and_form & 3)};
    }
    const bool claim = keep && header_->frozen.load() == 0;
    if (!entry.word.compare_exchange_strong(
            word, claim ? SampleEntry::word_of(SampleEntry::loading, use, this_process())
                        : SampleEntry::word_of(SampleEntry::absent, use))) {
      continue;
    }
    slot.misses.fetch_add(1, std::memory_order_relaxed);
    return {claim ? Outcome::claimed : Outcome::miss, nullptr, 0, Form::packed};
  }
}

// Sleeps until the entry's word may have changed.
void SampleStore::wait_for(size_t slot, const SampleEntry& entry, uint64_t seen) {
  // Nothing is read yet, and the process that loads the sample may need memory that was dropped.
  reclaimer_.suspend(slot);
  header_->waiting.fetch_add(1);
  const uint32_t changes = header_->changes.load();
  if (entry.word.load() == seen) sleep_on(header_->changes, changes);
  header_->waiting.fetch_sub(1);
  reclaimer_.resume(slot);
}

void SampleStore::wake() {
  header_->changes.fetch_add(1);
  wake_all(header_->changes);
}

// Frees an entry whose process was killed while it loaded the sample.
void SampleStore::recover(size_t sample, uint64_t seen) {
  SampleEntry& entry = entries_[sample];
  const uint64_t block = entry.block.load();
  if (!entry.word.compare_exchange_strong(
          seen, SampleEntry::word_of(SampleEntry::absent, SampleEntry::use_of(seen))))
    return;
  release(entry, block);
  wake();
}

// Returns a block, or Arena::kNone if there is no room. Under the lock.
uint64_t SampleStore::take(size_t size) {
  const bool fits = header_->arena.used + Arena::block_size(size) <= header_->limit.load();
  return fits ? arena().take(size) : Arena::kNone;
}

uint8_t* SampleStore::reserve(size_t sample, size_t size, Form form) {
  SampleEntry& entry = entries_[sample];
  release(entry, entry.block.load());
  entry.size_and_form = (uint64_t{size} << 2) | static_cast<uint64_t>(form);
  uint64_t block = Arena::kNone;
  // What was dropped may still be read by others, for a moment.
  for (int attempt = 0; attempt < 4 && header_->frozen.load() == 0; ++attempt) {
    const uint32_t changes = header_->changes.load();
    bool pending = false;
    {
      const ProcessMutex::Lock lock(header_->mutex, header_->frozen);
      if (header_->frozen.load() != 0) break;
      const uint64_t most = header_->max_samples;
      if (most != 0 && rule() == Rule::planned && header_->entries.load() >= most + most / 8 + kInFlight)
        break;
      const bool full = most != 0 && rule() == Rule::recent;
      while (full && header_->entries.load() >= header_->max_samples && evict_oldest()) {
      }
      block = take(size);
      if (block == Arena::kNone) {
        reclaimer_.reclaim();
        block = take(size);
      }
      while (block == Arena::kNone && rule() == Rule::recent && evict_oldest()) {
        reclaimer_.reclaim();
        block = take(size);
      }
      if (block != Arena::kNone) {
        entry.block = block + 1;
        break;
      }
      pending = reclaimer_.has_retired();
    }
    if (!pending) break;
    header_->waiting.fetch_add(1);
    sleep_on(header_->changes, changes);
    header_->waiting.fetch_sub(1);
  }
  if (block == Arena::kNone) {
    header_->refused.fetch_add(1, std::memory_order_relaxed);
    abandon(sample);
    return nullptr;
  }
  return arena().bytes(block);
}

void SampleStore::commit(size_t sample) {
  SampleEntry& entry = entries_[sample];
  entry.stamp = header_->stamps.fetch_add(1) + 1;
  header_->kept.fetch_add(1, std::memory_order_relaxed);
  header_->entries.fetch_add(1);
  entry.set(SampleEntry::present);
  if (header_->waiting.load() != 0) wake();
}

void SampleStore::abandon(size_t sample) {
  SampleEntry& entry = entries_[sample];
  if (SampleEntry::state_of(entry.word.load()) != SampleEntry::loading) return;
  release(entry, entry.block.load());
  entry.set(SampleEntry::absent);
  if (header_->waiting.load() != 0) wake();
}

bool SampleStore::belongs_to(uint64_t owner) {
  uint64_t first = 0;
  return header_->owner.compare_exchange_strong(first, owner) || first == owner;
}

bool SampleStore::first_to_tell() {
  return header_->told.exchange(1) == 0;
}

uint64_t SampleStore::due() const {
  return header_->due.load(std::memory_order_relaxed);
}

void SampleStore::set_due(uint64_t requests) {
  header_->due = requests;
}

size_t SampleStore::spill_to(int folder, const Blake2::Key& key, bool first) {
  spill_ = std::make_unique<Spill>(folder, key, spilled_, header_->samples, &header_->spill);
  return first ? spill_->scan() : 0;
}

bool SampleStore::contains(size_t sample) const {
  return SampleEntry::state_of(entries_[sample].word.load()) == SampleEntry::present;
}

void SampleStore::residents(uint8_t* out) const {
  for (size_t i = 0; i < header_->samples; ++i) out[i] = contains(i) ? 1 : 0;
}

void SampleStore::drop(size_t sample) {
  const Section section(*this);
  SampleEntry& entry = entries_[sample];
  for (;;) {
    uint64_t word = entry.word.load();
    if (SampleEntry::state_of(word) != SampleEntry::present) return;
    const uint64_t block = entry.block.load();
    if (entry.word.compare_exchange_strong(
            word, SampleEntry::word_of(SampleEntry::absent, SampleEntry::use_of(word)))) {
      header_->entries.fetch_sub(1);
      release(entry, block);
      return;
    }
  }
}

void SampleStore::clear() {
  for (size_t i = 0; i < header_->samples; ++i) drop(i);
}

// Drops the least recently used sample; false if there is none. One pass over all of them finds the next
// several: stamps only grow, so one that has not changed is still older than all that were not listed. Under
// the lock.
bool SampleStore::evict_oldest() {
  for (int pass = 0; pass < 2; ++pass) {
    while (!oldest_.empty()) {
      const auto [stamp, sample] = oldest_.back();
      oldest_.pop_back();
      if (contains(sample) && entries_[sample].stamp.load() == stamp) {
        drop(sample);
        return true;
      }
    }
    for (size_t i = 0; i < header_->samples; ++i) {
      if (contains(i)) oldest_.emplace_back(entries_[i].stamp.load(), i);
    }
    const size_t some = std::min(oldest_.size(), oldest_.size() / 16 + 1);
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
  for (size_t i = header_->samples; i-- > 0 && used > room + dropped;) {
    if (!contains(i)) continue;
    dropped += Arena::block_size(entries_[i].size_and_form.load() >> 2);
    drop(i);
  }
  const ProcessMutex::Lock lock(header_->mutex, header_->frozen);
  if (header_->frozen.load() != 0) return;
  reclaimer_.reclaim();
  arena().each_free([this](uint64_t offset, uint64_t size) { segment_->discard(memory_ + offset, size); });
}

SampleStore::Counts SampleStore::counts() const {
  Counts counts{};
  for (size_t i = 0; i < Reclaimer::kSlots; ++i) {
    counts.hits += reclaimer_.slot(i).hits.load(std::memory_order_relaxed);
    counts.misses += reclaimer_.slot(i).misses.load(std::memory_order_relaxed);
  }
  counts.kept = header_->kept;
  counts.refused = header_->refused;
  counts.waits = header_->waits;
  counts.unforeseen = header_->schedule.unforeseen;
  counts.used = header_->arena.used;
  counts.peak = header_->arena.peak;
  counts.room = header_->limit;
  return counts;
}

}  // namespace foreload
