// A lane: the spans of one worker, written without locks, and read by any thread or process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "pace.hpp"
#include "segment.hpp"

namespace foreload {

// In the order of src/foreload/record/spans.py.
enum class Stage : uint8_t { order, read, decode, cache, sample, transform, batch, wait, device };
constexpr size_t kStages = 9;

struct Span {
  uint64_t begin = 0, end = 0;
  Stage stage = Stage::order;
  uint32_t batch = 0, samples = 0;
  uint64_t bytes = 0;
};

// Sums over the spans of a stage. Times are without those of spans within spans.
struct Total {
  uint64_t count = 0, wall_ns = 0, cpu_ns = 0, samples = 0, bytes = 0;
};

// Sums over all spans of a stage, and the last spans in a ring. There is one writer, which readers do not
// hold up, and they never see half of a span. If the memory is shared, what is written outlives the writer's
// process, and another writer may go on.
class Lane {
 public:
  static constexpr size_t kSpans = 4096;
  static const size_t kBytes;  // the memory that it takes, a multiple of a page

  Lane();
  // In a part of a file in memory, kBytes long. Throws Error(system).
  Lane(int file, size_t offset);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Writes a span to the ring, and adds `sums` to the sums.
  void add(const Span& span, const Total& sums);
  // Adds to the sums alone.
  void count(Stage stage, const Total& sums);
  Total total(Stage stage) const;
  // The spans in the ring, oldest first.
  std::vector<Span> recent() const;
  // Resets the sums and forgets the spans.
  void clear();

  // Between the two, the calling thread is the worker whose lane this is.
  void enter();
  void leave();
  // Nanoseconds that such threads were ready to run while others had the cores.
  uint64_t queued_ns() const;

  // For the writer only.
  CpuRate& cpu_rate(Stage stage) { return rates_[static_cast<size_t>(stage)]; }
  Pace& pace(Stage stage) { return paces_[static_cast<size_t>(stage)]; }

 private:
  struct Memory;

  std::unique_ptr<Mapping> shared_;
  Memory* memory_;
  std::array<CpuRate, kStages> rates_;  // the writer's
  std::array<Pace, kStages> paces_;
  mutable std::mutex mutex_;  // guards what follows
  int thread_ = 0;            // 0: none
  uint64_t queued_ns_ = 0;    // of threads that have left
};

// Marks the calling thread as a worker of the lane, if there is one, until the end of the scope.
class WorkerScope {
 public:
  explicit WorkerScope(Lane* lane) : lane_(lane) {
    if (lane_ != nullptr) lane_->enter();
  }
  ~WorkerScope() {
    if (lane_ != nullptr) lane_->leave();
  }
  WorkerScope(const WorkerScope&) = delete;
  WorkerScope& operator=(const WorkerScope&) = delete;

 private:
  Lane* const lane_;
};

}  // namespace foreload
