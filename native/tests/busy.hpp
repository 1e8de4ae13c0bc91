// Ways for a test to spend time.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "clock.hpp"

inline void sleep_ms(int count) {
  std::this_thread::sleep_for(std::chrono::milliseconds(count));
}

inline void spin_ms(int count) {
  const uint64_t end = foreload::thread_cpu_ns() + static_cast<uint64_t>(count) * 1'000'000;
  while (foreload::thread_cpu_ns() < end) {
  }
}
