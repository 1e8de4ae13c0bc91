#include "store.hpp"

#include <algorithm>
#include <new>
#include <optional>

#include "error.hpp"
#include "process.hpp"
#include "store_header.hpp"

namespace foreload {

namespace {

// Entries of a hashed store beyond those that there is room for.
constexpr size_t kMoreEntries = 1 << 10;
// Samples that workers may be ahead of, or behind, the order that was planned.
constexpr uint64_t kInFlight = 1024;

constexpr size_t aligned(size_t size) {
  return (size + 4095) / 4096 * 4096;
}

void check_plannable(const SampleStore& store) {
  if (store.is_hashed()) throw Error(ErrorKind::value, "a hashed store follows rules only, not plans");
}

}  // namespace

SampleStore::SampleStore(std::unique_ptr<Segment> segment) : segment_(std::move(segment)) {}

std::shared_ptr<SampleStore> SampleStore::create(size_t samples, size_t bytes, size_t accesses,
                                                 size_t max_samples, bool hashed) {
  EntryTable::State table{};
  // A few more than there is room for are being loaded, or wait until they can be used again.
  const size_t most = hashed ? bytes / Arena::block_size(1) + kMoreEntries : 0;
  EntryTable::format(&table, samples, most);
  hashed = table.most != samples;
  const size_t planned = hashed ? 0 : samples;
  accesses = hashed ? 0 : std::max(accesses, samples);
  const size_t total = aligned(sizeof(Header)) + Reclaimer::kSlots * sizeof(Reclaimer::Slot) +
                       aligned(EntryTable::bytes(table)) + aligned(Schedule::bytes(planned, accesses)) +
                       aligned(planned * 8) + aligned(bytes);
  std::shared_ptr<SampleStore> store(new SampleStore(Segment::create(total)));
  auto* const header = new (store->segment_->memory()) Header{};
  EntryTable::format(&header->table, samples, most);
  header->max_samples = max_samples;
  header->rule = static_cast<uint32_t>(Rule::all);
  header->schedule.samples = planned;
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
  entries_ = EntryTable(&header_->table, at);
  at += aligned(EntryTable::bytes(header_->table));
  schedule_ = Schedule(&header_->schedule, at);
  at += aligned(Schedule::bytes(header_->schedule.samples, header_->schedule.accesses));
  spilled_ = reinterpret_cast<std::atomic<uint64_t>*>(at);
  at += aligned(header_->schedule.samples * 8);
  memory_ = at;
  reclaimer_ = Reclaimer(&header_->reclaimer, slots, arena());
}

size_t SampleStore::samples() const {
  return header_->table.samples;
}

Arena SampleStore::arena() const {
  return Arena(&header_->arena, memory_);
}

Rule SampleStore::rule() const {
  return static_cast<Rule>(header_->rule.load(std::memory_order_acquire));
}

void SampleStore::follow(const int64_t* accesses, size_t count, const uint8_t* keep,
                         const uint8_t* retained) {
  check_plannable(*this);
  schedule_.follow(accesses, count, keep);
  follow(Rule::planned);
  entries_.each([&](size_t sample, SampleEntry& entry) {
    if (retained[sample] == 0) drop(sample);
    entry.reset_use();
    return true;
  });
}

void SampleStore::follow(const uint8_t* members) {
  check_plannable(*this);
  schedule_.follow(members);
  follow(Rule::planned);
  drop_others();
}

void SampleStore::follow(Rule rule) {
  header_->rule = static_cast<uint32_t>(rule);
  meet_plans();
}

void SampleStore::follow(Key key, uint64_t ranks, const int64_t* own, size_t count, uint64_t limit) {
  const bool are_others = header_->owned.assign(samples(), key, ranks, own, count, limit);
  const bool is_new = rule() != Rule::owned;
  follow(Rule::owned);
  if (is_new || are_others) drop_others();
}

// Whether a request of a sample that was requested `use` times before leaves it in the cache.
bool SampleStore::keeps(size_t sample, uint64_t use, bool present) const {
  if (rule() == Rule::planned) return schedule_.keeps(sample, use, present);
  return rule() != Rule::owned || header_->owned.has(sample);
}

SampleStore::Section::Section(SampleStore& store) : store_(store), slot_(store.reclaimer_.enter()) {}

SampleStore::Section::~Section() {
  store_.reclaimer_.leave(slot_);
  if (store_.header_->waiting.load() != 0) store_.wake();
}

// Drops an entry's memory, once: of all callers that find a block there, the one that takes it out of the
// entry. Called within a section begun before `block` was read, or by the process that has claimed the entry,
// so that the block cannot have come back. Returns whether there was one.
bool SampleStore::release(SampleEntry& entry, uint64_t block) {
  if (block == 0 || !entry.block.compare_exchange_strong(block, 0)) return false;
  reclaimer_.retire(block - 1);
  return true;
}

// Whether there are as many samples as may be kept while none of them is evicted.
bool SampleStore::is_full() const {
  return header_->max_samples != 0 && rule() == Rule::all && header_->entries.load() >= header_->max_samples;
}

SampleStore::Found SampleStore::request(Section& section, size_t sample, bool wait) {
  if (sample >= samples())
    throw Error(ErrorKind::index, "the cache knows no sample " + std::to_string(sample));
  Reclaimer::Slot& slot = reclaimer_.slot(section.slot_);
  bool counted_wait = false;
  for (;;) {
    SampleEntry* const found = entries_.find(sample);
    uint64_t word = found == nullptr ? SampleEntry::word_of(SampleEntry::gone, 0) : found->word.load();
    const SampleEntry::State state = SampleEntry::state_of(word);
    if (state == SampleEntry::gone) {
      const std::optional<Outcome> outcome = claim_new(sample);
      if (!outcome) continue;
      slot.misses.fetch_add(1, std::memory_order_relaxed);
      return {*outcome, nullptr, 0, Form::packed};
    }
    SampleEntry& entry = *found;
    if (state == SampleEntry::loading) {
      if (!wait && is_alive(SampleEntry::owner_of(word))) return {Outcome::busy, nullptr, 0, Form::packed};
      if (!counted_wait) header_->waits.fetch_add(1, std::memory_order_relaxed);
      counted_wait = true;
      wait_for(section.slot_, entry, word);
      // Meanwhile the entry may have become another sample's.
      if (entries_.find(sample) == found && entry.word.load() == word &&
          !is_alive(SampleEntry::owner_of(word)))
        recover(entry, word);
      continue;
    }
    const uint64_t block = entry.block.load(), size_and_form = entry.size_and_form.load();
    const bool keep = keeps(sample, SampleEntry::use_of(word), state == SampleEntry::present);
    const uint64_t use = SampleEntry::use_of(word) + 1;
    if (state == SampleEntry::present) {
      // Kept anew in another form meanwhile, it has the same word again, but another block: a section that
      // began before keeps the one it has seen from being used again.
      if (block == 0 || entry.block.load() != block) continue;
      if (!entry.word.compare_exchange_strong(
              word, SampleEntry::word_of(keep ? SampleEntry::present : SampleEntry::absent, use)))
        continue;
      slot.hits.fetch_add(1, std::memory_order_relaxed);
      if (rule() == Rule::recent) entry.stamp = header_->stamps.fetch_add(1) + 1;
      if (!keep) {
        header_->entries.fetch_sub(1);
        release(entry, block);
      }
      return {Outcome::hit, arena().bytes(block - 1), SampleEntry::size_of(size_and_form),
              static_cast<Form>(SampleEntry::form_of(size_and_form))};
    }
    const bool claim = keep && header_->frozen.load() == 0 && !is_full();
    if (!entry.word.compare_exchange_strong(
            word, claim ? SampleEntry::word_of(SampleEntry::loading, use, this_process())
                        : SampleEntry::word_of(SampleEntry::absent, use))) {
      continue;
    }
    // Who dropped the sample may not have come to that yet.
    if (claim) release(entry, entry.block.load());
    slot.misses.fetch_add(1, std::memory_order_relaxed);
    return {claim ? Outcome::claimed : Outcome::miss, nullptr, 0, Form::packed};
  }
}

// Adds an entry for a sample that has none, claimed by the caller. Returns nothing if it has got one
// meanwhile.
std::optional<SampleStore::Outcome> SampleStore::claim_new(size_t sample) {
  if (!keeps(sample, 0, false)) return Outcome::miss;
  const ProcessMutex::Lock lock(header_->mutex, header_->frozen);
  if (header_->frozen.load() != 0 || is_full()) return Outcome::miss;
  if (entries_.find(sample) != nullptr) return std::nullopt;
  const uint64_t word = SampleEntry::word_of(SampleEntry::loading, 1, this_process());
  SampleEntry* entry = entries_.insert(sample, word, reclaimer_);
  if (entry == nullptr) {
    erase_absent();
    entry = entries_.insert(sample, word, reclaimer_);
  }
  return entry == nullptr ? Outcome::miss : Outcome::claimed;
}

SampleEntry* SampleStore::claimed(size_t sample) {
  const Section section(*this);
  return entries_.find(sample);
}

bool SampleStore::claim_present(Section&, size_t sample) {
  SampleEntry* const found = entries_.find(sample);
  if (found == nullptr || header_->frozen.load() != 0) return false;
  uint64_t word = found->word.load();
  if (SampleEntry::state_of(word) != SampleEntry::present) return false;
  if (!found->word.compare_exchange_strong(
          word, SampleEntry::word_of(SampleEntry::loading, SampleEntry::use_of(word), this_process()))) {
    return false;
  }
  header_->entries.fetch_sub(1);
  release(*found, found->block.load());
  return true;
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
void SampleStore::recover(SampleEntry& entry, uint64_t seen) {
  const uint64_t block = entry.block.load();
  if (!entry.word.compare_exchange_strong(
          seen, SampleEntry::word_of(SampleEntry::absent, SampleEntry::use_of(seen))))
    return;
  if (release(entry, block)) header_->entries.fetch_sub(1);
  wake();
}

// Returns a block, or Arena::kNone if there is no room. Under the lock.
uint64_t SampleStore::take(size_t size) {
  const bool fits = header_->arena.used + Arena::block_size(size) <= header_->limit.load();
  return fits ? arena().take(size) : Arena::kNone;
}

uint8_t* SampleStore::reserve(size_t sample, size_t size, Form form) {
  SampleEntry* const own = claimed(sample);
  if (own == nullptr) return nullptr;
  SampleEntry& entry = *own;
  entry.size_and_form = SampleEntry::described(size, static_cast<uint64_t>(form));
  uint64_t block = Arena::kNone;
  // What was dropped may still be read by others, for a moment.
  for (int attempt = 0; attempt < 4 && header_->frozen.load() == 0; ++attempt) {
    const uint32_t changes = header_->changes.load();
    bool pending = false;
    {
      const ProcessMutex::Lock lock(header_->mutex, header_->frozen);
      if (header_->frozen.load() != 0 || is_full()) break;
      const uint64_t most = header_->max_samples;
      if (most != 0 && rule() == Rule::planned && header_->entries.load() >= most + most / 8 + kInFlight)
        break;
      if (most != 0 && rule() == Rule::recent) {
        bool room = true;
        while (room && header_->entries.load() >= most) room = evict_oldest();
        if (!room) break;  // all of them are being written
      }
      // Where the number of samples is what limits the store, its memory is far larger than what they take.
      // To look through what was dropped takes time, so that waits until it may be a 64th of them.
      if (most != 0 && reclaimer_.changes() >= most / 64) reclaimer_.reclaim();
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
        header_->entries.fetch_add(1);
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
  SampleEntry* const own = claimed(sample);
  if (own == nullptr) return;
  SampleEntry& entry = *own;
  entry.stamp = header_->stamps.fetch_add(1) + 1;
  entry.set(SampleEntry::present);
  // It may have been claimed before the present plan was made, which other processes do not wait for.
  meet_plans();
  if (stays(sample, entry)) {
    header_->kept.fetch_add(1, std::memory_order_relaxed);
  } else {
    drop(sample);
  }
  if (header_->waiting.load() != 0) wake();
}

void SampleStore::abandon(size_t sample) {
  SampleEntry* const own = claimed(sample);
  if (own == nullptr || SampleEntry::state_of(own->word.load()) != SampleEntry::loading) return;
  if (release(*own, own->block.load())) header_->entries.fetch_sub(1);
  own->set(SampleEntry::absent);
  if (is_hashed()) {
    const ProcessMutex::Lock lock(header_->mutex, header_->frozen);
    SampleEntry* const left = entries_.find(sample);
    if (left != nullptr && header_->frozen.load() == 0) erase_if_absent(sample, *left);
  }
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
  check_plannable(*this);
  spill_ = std::make_unique<Spill>(folder, key, spilled_, samples(), &header_->spill);
  return first ? spill_->scan() : 0;
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
  counts.samples = header_->entries;
  return counts;
}

}  // namespace foreload
