// The rate at which spans are sampled: reading the clocks for each would slow down short ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace foreload {

// The share of its time that a thread is on a core. Reading a thread's clock takes a microsecond,
// which short spans can afford only now and then; the CPU time of the others is estimated from those.
class CpuRate {
 public:
  bool due() const { return credit_ >= kEach; }

  // Returns the likely CPU time of a span that was not measured.
  int64_t estimate(int64_t wall) {
    credit_ = std::min(kMax, credit_ + wall);
    return static_cast<int64_t>(static_cast<double>(wall) * share_);
  }

  // Counts a span that was measured, and returns its CPU time, which is never longer than the span.
  int64_t observe(int64_t wall, int64_t cpu) {
    credit_ = std::min(kMax, credit_ - kEach + wall);
    cpu = std::clamp<int64_t>(cpu, 0, std::max<int64_t>(0, wall));
    wall_ += wall;
    cpu_ += cpu;
    if (wall_ > 0) share_ = static_cast<double>(cpu_) / static_cast<double>(wall_);
    return cpu;
  }

 private:
  static constexpr int64_t kEach = 4'096'000,
                           kMax = 4 * kEach;  // nanoseconds of spans: per reading, saved up
  int64_t credit_ = kMax, wall_ = 0, cpu_ = 0;
  double share_ = 1;
};

// Which of many short spans are measured: about one in a quarter of a millisecond.
class Pace {
 public:
  // Returns how many spans the next one stands for; 0 if it is not to be measured.
  uint32_t weight() {
    if (skipped_ < skip_) {
      ++skipped_;
      return 0;
    }
    return std::exchange(skipped_, 0) + 1;
  }

  void observe(int64_t wall) {
    skip_ = static_cast<uint32_t>(std::min(kMax, kEach / std::max<int64_t>(1, wall)));
  }

 private:
  static constexpr int64_t kEach = 250'000, kMax = 64;  // nanoseconds, spans
  uint32_t skipped_ = 0, skip_ = 0;
};

}  // namespace foreload
