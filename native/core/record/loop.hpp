// The consumer's loop: how long it waits for batches, and how long it works on them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "lane.hpp"

namespace foreload {

class Loop {
 public:
  struct Sums {
    uint64_t epochs = 0, batches = 0, samples = 0;
    uint64_t wait_ns = 0, loop_ns = 0, loop_cpu_ns = 0, process_cpu_ns = 0;
    // Of the last epoch that delivered a batch: when it began, and the time to its first batch.
    uint64_t began_ns = 0, first_ns = 0;
  };

  explicit Loop(std::shared_ptr<Lane> lane) : lane_(std::move(lane)) {}

  // The set-up of an epoch begins, and ends.
  void begin();
  void begun();
  // The loop requests a batch.
  void mark_requested();
  // A span begins, which ordered() or gathered() ends: samples are drawn, or a batch is gathered.
  void mark();
  void ordered(uint64_t samples);
  void gathered(uint64_t samples, uint64_t bytes);
  // A batch is delivered.
  void mark_delivered(uint64_t samples);
  void clear();
  const Sums& sums() const { return sums_; }
  const std::shared_ptr<Lane>& lane() const { return lane_; }

 private:
  void lap(Stage stage, const Total& sums);

  std::shared_ptr<Lane> lane_;
  Sums sums_;
  CpuRate rate_, wait_rate_;
  bool in_loop_ = false, first_ = false, with_cpu_ = false, waits_with_cpu_ = false;
  uint64_t begin_ = 0, ready_ = 0, since_ = 0, marked_ = 0;  // times
  uint64_t delivered_ = 0;
  int64_t loop_ = 0, loop_cpu_ = 0;  // since the last delivery
  uint64_t cpu_ = 0, wait_cpu_ = 0, process_cpu_ = 0, process_read_ = 0;
};

}  // namespace foreload
