#include "reclaim.hpp"

#include <unistd.h>

#include <algorithm>

#include "process.hpp"

namespace foreload {

namespace {

// A slot's word: the process, then the clock. Linux numbers processes in 22 bits.
constexpr uint64_t kClockBits = 42;
constexpr uint64_t kLastClock = (uint64_t{1} << kClockBits) - 1;
constexpr uint64_t clock_of(uint64_t word) {
  return word & kLastClock;
}
constexpr uint64_t process_of(uint64_t word) {
  return word >> kClockBits;
}
uint64_t own_word(uint64_t clock) {
  return this_process() << kClockBits | clock;
}

}  // namespace

Reclaimer::Reclaimer(State* state, Slot* slots, const Arena& arena)
    : state_(state), slots_(slots), arena_(arena) {}

// Where a thread looks for a free slot first: each tends to find the one free that it had before.
static size_t& slot_hint() {
  static std::atomic<size_t> threads{0};
  thread_local size_t hint = threads.fetch_add(1) + static_cast<size_t>(getpid());
  return hint;
}

bool Reclaimer::enter_at(size_t slot, uint64_t process) {
  uint64_t idle = 0;
  return slots_[slot].active.compare_exchange_strong(idle, process | state_->clock.load());
}

size_t Reclaimer::enter() {
  const uint64_t process = own_word(0);
  size_t& hint = slot_hint();
  while (!enter_at(hint % kSlots, process)) ++hint;
  return hint % kSlots;
}

std::optional<size_t> Reclaimer::try_enter() {
  const uint64_t process = own_word(0);
  size_t& hint = slot_hint();
  for (int tries = 0; tries < 4; ++tries, ++hint) {
    if (enter_at(hint % kSlots, process)) return hint % kSlots;
  }
  return std::nullopt;
}

void Reclaimer::suspend(size_t slot) {
  slots_[slot].active.store(own_word(kLastClock));
}

void Reclaimer::resume(size_t slot) {
  slots_[slot].active.store(own_word(state_->clock.load()));
}

// Puts a block in front of the chain.
void Reclaimer::chain(uint64_t block) {
  Arena::Block* const head = arena_.block(block);
  uint64_t first = state_->retired.load();
  do {
    head->note = first;
  } while (!state_->retired.compare_exchange_weak(first, block + 1));
}

void Reclaimer::retire(uint64_t block) {
  arena_.block(block)->previous = tick();
  chain(block);
}

// Returns the clock of the oldest section that may still read what was dropped.
uint64_t Reclaimer::oldest_section() const {
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

uint64_t Reclaimer::safe_until() const {
  const uint64_t now = state_->clock.load();
  return std::min(now, oldest_section());
}

void Reclaimer::reclaim() {
  state_->reclaimed = state_->clock.load();
  uint64_t next = state_->retired.exchange(0);
  if (next == 0) return;
  const uint64_t oldest = oldest_section();
  while (next != 0) {
    const uint64_t block = next - 1;
    next = arena_.block(block)->note;
    if (arena_.block(block)->previous < oldest) {
      arena_.release(block);
    } else {
      chain(block);
    }
  }
}

}  // namespace foreload
