// The state of a store as a whole, at the beginning of the segment that its processes share.
#pragma once

#include <atomic>
#include <cstdint>

#include "owned.hpp"
#include "process_mutex.hpp"
#include "store.hpp"

namespace foreload {

struct SampleStore::Header {
  uint64_t max_samples;  // in the store; 0: any number
  std::atomic<uint32_t> rule;
  std::atomic<uint32_t> meeting;  // of those who plan and those who keep; see meet_plans()
  std::atomic<uint64_t> stamps;   // of uses, for `recent`
  std::atomic<uint32_t> changes;  // counts what a process may be waiting for
  std::atomic<uint32_t> waiting;
  std::atomic<uint64_t> kept, refused, waits;
  std::atomic<uint64_t> entries;  // that have memory: present, or being written
  std::atomic<uint64_t> owner;
  std::atomic<uint32_t> told;
  std::atomic<uint64_t> due;
  Spill::Counts spill;
  // A process died while it held the mutex. What is cached stays good, but nothing new is kept, since the
  // arena's free lists may be half changed.
  std::atomic<uint32_t> frozen;
  std::atomic<uint64_t> limit;  // of what blocks may take
  EntryTable::State table;
  Schedule::State schedule;
  Reclaimer::State reclaimer;
  Owned owned;
  alignas(64) ProcessMutex mutex;  // guards the arena
  Arena::State arena;
};

}  // namespace foreload
