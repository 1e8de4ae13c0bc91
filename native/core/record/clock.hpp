// The clocks that spans are measured with, in nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>

namespace foreload {

inline uint64_t read_clock(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

inline uint64_t now_ns() {
  return read_clock(CLOCK_MONOTONIC);
}

// What the calling thread, and all threads of this process, have spent on cores.
inline uint64_t thread_cpu_ns() {
  return read_clock(CLOCK_THREAD_CPUTIME_ID);
}
inline uint64_t process_cpu_ns() {
  return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

// The time between two readings of a clock.
inline int64_t difference(uint64_t end, uint64_t begin) {
  return static_cast<int64_t>(end - begin);
}

}  // namespace foreload
