#include "store.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "error.hpp"
#include "process.hpp"

namespace foreload {

namespace {

constexpr size_t kSlots = 512;

// An entry's word: state, then how often the sample was asked for, then the process that is filling it.
enum State : uint64_t { absent = 0, filling = 1, present = 2 };
constexpr uint64_t kStateBits = 2, kUseBits = 40;
constexpr uint64_t state_of(uint64_t word) {
  return word & 3;
}
constexpr uint64_t use_of(uint64_t word) {
  return (word >> kStateBits) & ((uint64_t{1} << kUseBits) - 1);
}
constexpr uint64_t owner_of(uint64_t word) {
  return word >> (kStateBits + kUseBits);
}
constexpr uint64_t word_of(State state, uint64_t use, uint64_t owner = 0) {
  return (owner << (kStateBits + kUseBits)) | (use << kStateBits) | state;
}

// A slot's word: the process in a section, and the clock when it entered. Linux numbers processes in 22 bits.
constexpr uint64_t kClockBits = 42;
constexpr uint64_t clock_of(uint64_t word) {
  return word & ((uint64_t{1} << kClockBits) - 1);
}
constexpr uint64_t process_of(uint64_t word) {
  return word >> kClockBits;
}

constexpr size_t aligned(size_t size) {
  return (size + 4095) / 4096 * 4096;
}

}  // namespace

struct SampleStore::Header {
  uint64_t samples, accesses, most;
  std::atomic<uint32_t> keeping;
  std::atomic<uint32_t> scheduled;  // whether `planned` goes by accesses, not by samples
  std::atomic<uint64_t> clock;      // of dropped memory
  std::atomic<uint64_t> stamps;     // of uses, for `recent`
  std::atomic<uint64_t> retired;    // offset + 1 of the block dropped last; they are chained by `note`
  std::atomic<uint32_t> changes;    // counts what somebody may be waiting for
  std::atomic<uint32_t> waiting;
  std::atomic<uint64_t> kept, refused, waits, unforeseen, entries;
  std::atomic<uint64_t> owner;
  std::atomic<uint32_t> told;
  std::atomic<uint32_t> spill_files;
  std::atomic<uint32_t> frozen;  // a process died while it held the lock: nothing new is kept
  std::atomic<uint64_t> limit;   // of what blocks may take
  pthread_mutex_t lock;          // guards the arena
  Arena::State arena;
};

struct alignas(64) SampleStore::Slot {
  std::atomic<uint64_t> active;  // 0: not in a section
  std::atomic<uint64_t> hits, misses;
};

struct SampleStore::Entry {
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> block;  // offset + 1; 0: none
  std::atomic<uint64_t> size_and_form;
  std::atomic<uint64_t> stamp;
  std::atomic<uint64_t> cost, cost_before;  // nanoseconds
};

namespace {

class Lock {
 public:
  Lock(pthread_mutex_t& mutex, std::atomic<uint32_t>& frozen) : mutex_(mutex) {
    if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) {
      // The free lists may be half changed. What is cached stays good.
      frozen.store(1);
#ifdef __linux__
      pthread_mutex_consistent(&mutex_);
#endif
    }
  }
  ~Lock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t& mutex_;
};

}  // namespace

SampleStore::SampleStore(std::unique_ptr<Segment> segment) : segment_(std::move(segment)) {}

std::shared_ptr<SampleStore> SampleStore::create(size_t samples, size_t bytes, size_t accesses, size_t most) {
  const size_t words = (std::max(accesses, samples) + 63) / 64 + 1;
  const size_t total = aligned(sizeof(Header)) + kSlots * sizeof(Slot) + aligned(samples * sizeof(Entry)) +
                       aligned((samples + 1) * 8) + aligned(words * 8) + aligned(samples * 8) +
                       aligned(bytes);
  std::shared_ptr<SampleStore> store(new SampleStore(Segment::create(total)));
  auto* const header = new (store->segment_->memory()) Header{};
  header->samples = samples;
  header->accesses = std::max(accesses, samples);
  header->most = most;
  header->keeping = static_cast<uint32_t>(Keeping::all);
  header->clock = 1;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
#ifdef __linux__
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
#endif
  pthread_mutex_init(&header->lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
  store->lay_out();
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
  slots_ = reinterpret_cast<Slot*>(at);
  at += kSlots * sizeof(Slot);
  entries_ = reinterpret_cast<Entry*>(at);
  at += aligned(header_->samples * sizeof(Entry));
  offsets_ = reinterpret_cast<std::atomic<uint64_t>*>(at);
  at += aligned((header_->samples + 1) * 8);
  bits_ = reinterpret_cast<std::atomic<uint64_t>*>(at);
  at += aligned(((header_->accesses + 63) / 64 + 1) * 8);
  spilled_ = reinterpret_cast<std::atomic<uint64_t>*>(at);
  at += aligned(header_->samples * 8);
  memory_ = at;
}

size_t SampleStore::samples() const {
  return header_->samples;
}

Arena SampleStore::arena() const {
  return Arena(&header_->arena, memory_);
}

Keeping SampleStore::keeping() const {
  return static_cast<Keeping>(header_->keeping.load(std::memory_order_relaxed));
}

void SampleStore::follow(const int64_t* accesses, size_t count, const uint8_t* keep,
                         const uint8_t* retained) {
  if (count > header_->accesses) {
    throw Error(ErrorKind::value, "a schedule of " + std::to_string(count) +
                                      " accesses in a store with room for " +
                                      std::to_string(header_->accesses));
  }
  const size_t samples = header_->samples;
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
  header_->scheduled = 1;
  header_->keeping = static_cast<uint32_t>(Keeping::planned);
  for (size_t i = 0; i < samples; ++i) {
    if (retained[i] == 0) drop(i);
    uint64_t word = entries_[i].word.load();
    while (!entries_[i].word.compare_exchange_weak(
        word, word_of(static_cast<State>(state_of(word)), 0, owner_of(word)))) {
    }
  }
}

void SampleStore::follow(const uint8_t* members) {
  const size_t samples = header_->samples;
  for (size_t word = 0; word * 64 < samples; ++word) {
    uint64_t bits = 0;
    for (size_t i = word * 64; i < std::min(samples, word * 64 + 64); ++i) {
      if (members[i] != 0) bits |= uint64_t{1} << (i % 64);
    }
    bits_[word].store(bits, std::memory_order_relaxed);
  }
  header_->scheduled = 0;
  header_->keeping = static_cast<uint32_t>(Keeping::planned);
  for (size_t i = 0; i < samples; ++i) {
    if (members[i] == 0) drop(i);
  }
}

void SampleStore::follow(Keeping keeping) {
  header_->keeping = static_cast<uint32_t>(keeping);
}

bool SampleStore::keeps(size_t sample, uint64_t use, bool present) {
  if (keeping() != Keeping::planned) return true;
  uint64_t bit = sample;
  if (header_->scheduled.load(std::memory_order_relaxed) != 0) {
    const uint64_t begin = offsets_[sample].load(std::memory_order_relaxed);
    const uint64_t end = offsets_[sample + 1].load(std::memory_order_relaxed);
    bit = begin + use;
    if (bit >= end || bit >= header_->accesses) {
      header_->unforeseen.fetch_add(1, std::memory_order_relaxed);
      return present;
    }
  }
  return ((bits_[bit / 64].load(std::memory_order_relaxed) >> (bit % 64)) & 1) != 0;
}

// Sections.

SampleStore::Section::Section(SampleStore& store) : store_(store), slot_(0) {
  // Each thread tends to find the slot free that it had before.
  static std::atomic<size_t> threads{0};
  thread_local size_t hint = threads.fetch_add(1) + static_cast<size_t>(getpid());
  const uint64_t process = this_process() << kClockBits;
  for (;; ++hint) {
    slot_ = hint % kSlots;
    uint64_t idle = 0;
    if (store.slots_[slot_].active.compare_exchange_strong(idle, process | store.header_->clock.load()))
      return;
  }
}

SampleStore::Section::~Section() {
  store_.slots_[slot_].active.store(0);
  if (store_.header_->waiting.load() != 0) store_.wake();
}

// The clock of the oldest section that may still read what was dropped.
uint64_t SampleStore::oldest_section() const {
  uint64_t oldest = UINT64_MAX;
  for (size_t i = 0; i < kSlots; ++i) {
    uint64_t word = slots_[i].active.load();
    if (word == 0) continue;
    if (!is_alive(process_of(word))) {
      slots_[i].active.compare_exchange_strong(word, 0);
      continue;
    }
    oldest = std::min(oldest, clock_of(word));
  }
  return oldest;
}

void SampleStore::retire(uint64_t block) {
  Arena::Block* const head = arena().block(block);
  head->previous = header_->clock.fetch_add(1);
  uint64_t first = header_->retired.load();
  do {
    head->note = first;
  } while (!header_->retired.compare_exchange_weak(first, block + 1));
}

// Drops an entry's memory, once: of all who find it there, the one that takes it out of the entry. Within a
// section begun before `block` was read, or by who has claimed the entry, so that it cannot have come back.
void SampleStore::release(Entry& entry, uint64_t block) {
  if (block != 0 && entry.block.compare_exchange_strong(block, 0)) retire(block - 1);
}

// Gives back what was dropped and is read by nobody. Under the lock.
void SampleStore::reclaim() {
  uint64_t next = header_->retired.exchange(0);
  if (next == 0) return;
  const uint64_t oldest = oldest_section();
  while (next != 0) {
    const uint64_t block = next - 1;
    Arena::Block* const head = arena().block(block);
    next = head->note;
    if (head->previous < oldest) {
      arena().give_back(block);
      continue;
    }
    uint64_t first = header_->retired.load();
    do {
      head->note = first;
    } while (!header_->retired.compare_exchange_weak(first, block + 1));
  }
}

// Requests.

SampleStore::Found SampleStore::request(Section& section, size_t sample, bool wait) {
  if (sample >= header_->samples)
    throw Error(ErrorKind::index, "the cache knows no sample " + std::to_string(sample));
  Entry& entry = entries_[sample];
  Slot& slot = slots_[section.slot_];
  bool counted_wait = false;
  for (;;) {
    uint64_t word = entry.word.load();
    const State state = static_cast<State>(state_of(word));
    if (state == filling) {
      if (!wait && is_alive(owner_of(word))) return {Outcome::busy, nullptr, 0, Form::packed};
      if (!counted_wait) header_->waits.fetch_add(1, std::memory_order_relaxed);
      counted_wait = true;
      wait_for(slot, entry, word);
      if (entry.word.load() == word && !is_alive(owner_of(word))) recover(sample, word);
      continue;
    }
    const uint64_t block = entry.block.load(), size_and_form = entry.size_and_form.load();
    const bool keep = keeps(sample, use_of(word), state == present);
    const uint64_t use = use_of(word) + 1;
    if (state == present) {
      if (!entry.word.compare_exchange_strong(word, word_of(keep ? present : absent, use))) continue;
      slot.hits.fetch_add(1, std::memory_order_relaxed);
      if (keeping() == Keeping::recent) entry.stamp = header_->stamps.fetch_add(1) + 1;
      if (!keep) {
        header_->entries.fetch_sub(1);
        release(entry, block);
      }
      return {Outcome::hit, arena().bytes(block - 1), size_and_form >> 2,
              static_cast<Form>(size_and_form & 3)};
    }
    const bool claim = keep && header_->frozen.load() == 0;
    if (!entry.word.compare_exchange_strong(
            word, claim ? word_of(filling, use, this_process()) : word_of(absent, use))) {
      continue;
    }
    slot.misses.fetch_add(1, std::memory_order_relaxed);
    return {claim ? Outcome::claimed : Outcome::miss, nullptr, 0, Form::packed};
  }
}

void SampleStore::wait_for(Slot& slot, const Entry& entry, uint64_t seen) {
  // Nothing is read yet, and who fills the entry may need what was dropped.
  const uint64_t process = this_process() << kClockBits;
  slot.active.store(process | clock_of(UINT64_MAX));
  header_->waiting.fetch_add(1);
  const uint32_t changes = header_->changes.load();
  if (entry.word.load() == seen) sleep_on(header_->changes, changes);
  header_->waiting.fetch_sub(1);
  slot.active.store(process | header_->clock.load());
}

void SampleStore::wake() {
  header_->changes.fetch_add(1);
  wake_all(header_->changes);
}

// The process that was to fill this entry is gone.
void SampleStore::recover(size_t sample, uint64_t seen) {
  Entry& entry = entries_[sample];
  const uint64_t block = entry.block.load();
  if (!entry.word.compare_exchange_strong(seen, word_of(absent, use_of(seen)))) return;
  release(entry, block);
  wake();
}

// Under the lock.
uint64_t SampleStore::take(size_t size) {
  const bool fits = header_->arena.used + Arena::block_size(size) <= header_->limit.load();
  return fits ? arena().take(size) : Arena::kNone;
}

uint8_t* SampleStore::reserve(size_t sample, size_t size, Form form) {
  Entry& entry = entries_[sample];
  release(entry, entry.block.load());
  entry.size_and_form = (uint64_t{size} << 2) | static_cast<uint64_t>(form);
  uint64_t block = Arena::kNone;
  // What was dropped may still be read by others, for a moment.
  for (int attempt = 0; attempt < 4 && header_->frozen.load() == 0; ++attempt) {
    const uint32_t changes = header_->changes.load();
    bool pending = false;
    {
      const Lock lock(header_->lock, header_->frozen);
      if (header_->frozen.load() != 0) break;
      const bool full = header_->most != 0 && keeping() == Keeping::recent;
      while (full && header_->entries.load() >= header_->most && evict_oldest()) {
      }
      block = take(size);
      if (block == Arena::kNone) {
        reclaim();
        block = take(size);
      }
      while (block == Arena::kNone && keeping() == Keeping::recent && evict_oldest()) {
        reclaim();
        block = take(size);
      }
      if (block != Arena::kNone) {
        entry.block = block + 1;
        break;
      }
      pending = header_->retired.load() != 0;
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
  Entry& entry = entries_[sample];
  entry.stamp = header_->stamps.fetch_add(1) + 1;
  const uint64_t word = entry.word.load();
  header_->kept.fetch_add(1, std::memory_order_relaxed);
  header_->entries.fetch_add(1);
  uint64_t seen = word;
  while (!entry.word.compare_exchange_weak(seen, word_of(present, use_of(seen)))) {
  }
  if (header_->waiting.load() != 0) wake();
}

void SampleStore::abandon(size_t sample) {
  Entry& entry = entries_[sample];
  uint64_t seen = entry.word.load();
  if (state_of(seen) != filling) return;
  release(entry, entry.block.load());
  while (!entry.word.compare_exchange_weak(seen, word_of(absent, use_of(seen)))) {
  }
  if (header_->waiting.load() != 0) wake();
}

bool SampleStore::belongs_to(uint64_t owner) {
  uint64_t nobody = 0;
  return header_->owner.compare_exchange_strong(nobody, owner) || nobody == owner;
}

bool SampleStore::first_to_tell() {
  return header_->told.exchange(1) == 0;
}

size_t SampleStore::spill_to(const std::string& folder, bool first) {
  spill_ = std::make_unique<Spill>(folder, spilled_, header_->samples, &header_->spill_files);
  return first ? spill_->scan() : 0;
}

void SampleStore::note_cost(size_t sample, uint64_t nanoseconds) {
  Entry& entry = entries_[sample];
  entry.cost_before.store(entry.cost.exchange(std::max<uint64_t>(1, nanoseconds)), std::memory_order_relaxed);
}

void SampleStore::note_size(size_t sample, size_t size) {
  uint64_t unknown = 0;
  entries_[sample].size_and_form.compare_exchange_strong(unknown, uint64_t{size} << 2);
}

bool SampleStore::is_measured(size_t sample) const {
  return entries_[sample].size_and_form.load(std::memory_order_relaxed) != 0;
}

void SampleStore::sizes(int64_t* out) const {
  for (size_t i = 0; i < header_->samples; ++i) {
    const uint64_t size_and_form = entries_[i].size_and_form.load(std::memory_order_relaxed);
    out[i] = size_and_form == 0 ? 0 : static_cast<int64_t>(Arena::block_size(size_and_form >> 2));
  }
}

void SampleStore::costs(int64_t* last, int64_t* before) const {
  for (size_t i = 0; i < header_->samples; ++i) {
    last[i] = static_cast<int64_t>(entries_[i].cost.load(std::memory_order_relaxed));
    before[i] = static_cast<int64_t>(entries_[i].cost_before.load(std::memory_order_relaxed));
  }
}

bool SampleStore::contains(size_t sample) const {
  return state_of(entries_[sample].word.load()) == present;
}

void SampleStore::residents(uint8_t* out) const {
  for (size_t i = 0; i < header_->samples; ++i) out[i] = contains(i) ? 1 : 0;
}

void SampleStore::drop(size_t sample) {
  const Section section(*this);
  Entry& entry = entries_[sample];
  for (;;) {
    uint64_t word = entry.word.load();
    if (state_of(word) != present) return;
    const uint64_t block = entry.block.load();
    if (entry.word.compare_exchange_strong(word, word_of(absent, use_of(word)))) {
      header_->entries.fetch_sub(1);
      release(entry, block);
      return;
    }
  }
}

void SampleStore::clear() {
  for (size_t i = 0; i < header_->samples; ++i) drop(i);
}

// Drops the least recently used sample. One look at all of them finds the next several: stamps only grow, so
// one that has not changed is still older than all that were not listed. Under the lock.
bool SampleStore::evict_oldest() {
  for (int looked = 0; looked < 2; ++looked) {
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
  const Lock lock(header_->lock, header_->frozen);
  if (header_->frozen.load() != 0) return;
  reclaim();
  arena().each_free([this](uint64_t offset, uint64_t size) { segment_->discard(memory_ + offset, size); });
}

SampleStore::Counts SampleStore::counts() const {
  Counts counts{};
  for (size_t i = 0; i < kSlots; ++i) {
    counts.hits += slots_[i].hits.load(std::memory_order_relaxed);
    counts.misses += slots_[i].misses.load(std::memory_order_relaxed);
  }
  counts.kept = header_->kept;
  counts.refused = header_->refused;
  counts.waits = header_->waits;
  counts.unforeseen = header_->unforeseen;
  counts.used = header_->arena.used;
  counts.peak = header_->arena.peak;
  counts.room = header_->limit;
  return counts;
}

}  // namespace foreload
