// What happened when: each worker writes what it did to a lane of its own, without locks, and anybody may
// read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "segment.hpp"

namespace foreload {

// As src/foreload/observe/spans.py has it.
enum class Stage : uint8_t { order, read, decode, cache, sample, transform, batch, wait, device };
constexpr size_t kStages = 9;

// Nanoseconds of CLOCK_MONOTONIC, and of the calling thread on a core.
uint64_t now_ns();
uint64_t thread_cpu_ns();

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

// The share of time that a thread is on a core. Looking takes a microsecond, which short spans can
// afford now and then only; what the others took is guessed from those.
class CpuRate {
 public:
  bool due() const { return credit_ >= kEach; }
  // What a span took on a core that was not looked at.
  int64_t guess(int64_t wall);
  // Takes note of one that was.
  int64_t saw(int64_t wall, int64_t cpu);

 private:
  static constexpr int64_t kEach = 4'096'000, kMost = 4 * kEach;  // nanoseconds of spans: for one look, saved
  int64_t credit_ = kMost, wall_ = 0, cpu_ = 0;
  double share_ = 1;
};

// Which of many short spans are measured: about one in a quarter of a millisecond.
class Pace {
 public:
  // Of the next span: 0, or for how many it stands.
  uint32_t weight();
  void saw(int64_t wall);

 private:
  static constexpr int64_t kEach = 250'000, kMost = 64;  // nanoseconds, spans
  uint32_t skipped_ = 0, skip_ = 0;
};

// The spans of one writer: sums, and the last ones in a ring. Readers do not hold it up, and never see half
// of a span. Where the memory is shared, what is written outlives the writer, and another one may go on.
class Lane {
 public:
  static constexpr size_t kSpans = 4096;
  static const size_t kBytes;  // of memory, a multiple of a page

  Lane();
  // In a part of a file in memory, kBytes long. Throws Error(system).
  Lane(int file, size_t offset);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // `sums`: what it adds to the sums.
  void add(const Span& span, const Total& sums);
  // Adds to the sums alone.
  void count(Stage stage, const Total& sums);
  Total total(Stage stage) const;
  // What is in the ring, oldest first.
  std::vector<Span> recent() const;
  // Forgets all of it.
  void clear();

  // The calling thread is a worker, whose lane this is, from `enter` to `leave`.
  void enter();
  void leave();
  // Nanoseconds in which such threads were ready to run, and others had the cores.
  uint64_t queued_ns() const;

  // For its writer only.
  CpuRate& cpu_rate(Stage stage) { return rates_[static_cast<size_t>(stage)]; }
  Pace& pace(Stage stage) { return paces_[static_cast<size_t>(stage)]; }

 private:
  struct Memory;

  std::unique_ptr<Mapping> shared_;
  Memory* memory_;
  std::array<CpuRate, kStages> rates_;  // the writer's own
  std::array<Pace, kStages> paces_;
  mutable std::mutex mutex_;  // of what follows
  int thread_ = 0;            // 0: none
  uint64_t queued_ns_ = 0;    // of those that have left
};

// The calling thread is a worker until the end of the scope.
class Presence {
 public:
  explicit Presence(Lane* lane) : lane_(lane) {
    if (lane_ != nullptr) lane_->enter();
  }
  ~Presence() {
    if (lane_ != nullptr) lane_->leave();
  }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  Lane* const lane_;
};

// What the calling thread writes to.
struct Current {
  Lane* lane = nullptr;
  uint32_t batch = 0;
  int64_t inner = 0, inner_cpu = 0;  // nanoseconds of spans within the one under way
};
Current& current();

// The calling thread writes to this lane until the end of the scope.
class Scope {
 public:
  Scope(Lane* lane, uint32_t batch) : before_(std::exchange(current(), Current{lane, batch})) {}
  ~Scope() { current() = before_; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Current before_;
};

// A span from here to the end of the scope, if the thread has a lane.
class Measure {
 public:
  // `weight`: for how many spans like it this one stands, where only some are measured.
  explicit Measure(Stage stage, uint64_t samples = 1, uint64_t weight = 1);
  ~Measure() { end(); }
  Measure(const Measure&) = delete;
  Measure& operator=(const Measure&) = delete;

  void add_bytes(uint64_t bytes) { bytes_ += bytes; }
  void set_samples(uint64_t samples) { samples_ = samples; }
  void end();

 private:
  friend class Glance;

  Lane* lane_;
  Stage stage_;
  bool with_cpu_ = false, glances_ = false;  // whether only its time stands for that of others
  uint64_t samples_, weight_, bytes_ = 0, begin_ = 0, cpu_ = 0;
  int64_t inner_ = 0, inner_cpu_ = 0;  // of the spans around it
};

// The same where spans may be too short to be measured each time: then one of several is, and its time stands
// for theirs. They are counted each time.
class Glance {
 public:
  Glance(Stage stage, uint64_t samples);
  ~Glance();
  Glance(const Glance&) = delete;
  Glance& operator=(const Glance&) = delete;

  void add_bytes(uint64_t bytes) { bytes_ += bytes; }

 private:
  const Stage stage_;
  const uint64_t samples_;
  uint64_t bytes_ = 0;
  std::optional<Measure> measure_;
};

// Spans one behind the other, which need one look at the clock each. Where they are short all together, only
// some times are measured, which stand for the others, unless each is `needed`: a stopwatch.
class Laps {
 public:
  void begin(bool needed);
  // Ends one, and begins the next; returns its seconds, 0 if this time is not measured.
  double end(Stage stage, uint64_t bytes = 0);

 private:
  bool with_cpu_ = false;
  uint32_t weight_ = 1;
  uint64_t first_ = 0, last_ = 0, cpu_ = 0;
};

// What the consumer of batches does: wait for them, and work on them.
class Loop {
 public:
  struct Sums {
    uint64_t epochs = 0, batches = 0, samples = 0;
    uint64_t wait_ns = 0, loop_ns = 0, loop_cpu_ns = 0, process_cpu_ns = 0;
    uint64_t began_ns = 0,
             first_ns = 0;  // of the last epoch that gave a batch: when, and how long to the first
  };

  explicit Loop(std::shared_ptr<Lane> lane) : lane_(std::move(lane)) {}

  // An epoch is made ready, and is ready.
  void begin();
  void begun();
  // A batch is asked for; samples begin to be drawn; they are known; a batch is gathered, given, or several
  // are that the loop takes one by one.
  void mark_requested();
  void mark();
  void ordered(uint64_t samples);
  void gathered(uint64_t samples, uint64_t bytes, uint64_t batches);
  void mark_delivered(uint64_t samples, uint64_t batches);
  // Of those given last, so many were never taken.
  void take_back(uint64_t samples, uint64_t batches);
  void clear();
  const Sums& sums() const { return sums_; }
  // How many batches may be given together: they are given by the clock once, and the loop sees one after the
  // other. No more than it takes in a moment; as the last epochs have found, too.
  uint64_t pays_together();
  const std::shared_ptr<Lane>& lane() const { return lane_; }

 private:
  void lap(Stage stage, const Total& sums);

  std::shared_ptr<Lane> lane_;
  Sums sums_;
  CpuRate rate_, wait_rate_;
  bool in_loop_ = false, first_ = false, with_cpu_ = false, waits_with_cpu_ = false;
  uint64_t iter_ = 0, ready_ = 0, since_ = 0, marked_ = 0;  // when
  static constexpr uint64_t kMoment = 1'000'000;            // nanoseconds
  uint64_t given_ = 0, together_ = 1, taken_ns_ = 0, pays_ = 1;
  int64_t loop_ = 0, loop_cpu_ = 0;  // since the last batch was given
  uint64_t cpu_ = 0, wait_cpu_ = 0, process_cpu_ = 0, looked_ = 0;
};

}  // namespace foreload
