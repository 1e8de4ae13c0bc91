// Epoch-based reclamation (Fraser 2004): memory that was dropped is used again when the sections that might
// still read it have ended. A section takes no lock, and one whose process was killed counts as ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "arena.hpp"

namespace foreload {

class Reclaimer {
 public:
  // Sections under way, of all processes.
  static constexpr size_t kSlots = 512;

  struct State {
    std::atomic<uint64_t> clock;      // of dropped memory
    std::atomic<uint64_t> retired;    // offset + 1 of the block dropped last; they are chained by `note`
    std::atomic<uint64_t> reclaimed;  // the clock at the last reclaim()
  };
  struct alignas(64) Slot {
    std::atomic<uint64_t> active;        // the process in a section, and the clock when it entered; 0: none
    std::atomic<uint64_t> hits, misses;  // counted here, since one counter for all would be contended
  };

  Reclaimer() = default;
  // In zeroed memory that processes share.
  Reclaimer(State* state, Slot* slots, const Arena& arena);
  void format() { state_->clock = 1; }

  // Begins a section; returns its slot.
  size_t enter();
  // The same, if one of a few slots is free.
  std::optional<size_t> try_enter();
  void leave(size_t slot) { slots_[slot].active.store(0); }
  // While a section is suspended, it must read nothing, and holds nothing up.
  void suspend(size_t slot);
  void resume(size_t slot);
  Slot& slot(size_t number) const { return slots_[number]; }

  // Drops a block, which sections that have begun may still read.
  void retire(uint64_t block);
  // The time of a change that sections under way may not have seen.
  uint64_t tick() { return state_->clock.fetch_add(1); }
  // What was changed before this time is seen by all sections.
  uint64_t safe_until() const;
  bool has_retired() const { return state_->retired.load() != 0; }
  // How often something was dropped, or changed, since the last reclaim().
  uint64_t changes() const { return state_->clock.load() - state_->reclaimed.load(); }
  // Gives back to the arena what was dropped and is read no more. Under the arena's lock.
  void reclaim();

 private:
  bool enter_at(size_t slot, uint64_t process);
  void chain(uint64_t block);
  uint64_t oldest_section() const;

  State* state_ = nullptr;
  Slot* slots_ = nullptr;
  Arena arena_{nullptr, nullptr};
};

}  // namespace foreload
