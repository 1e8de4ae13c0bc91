// Measures spans: each is written to the lane of the thread that it is measured in.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "lane.hpp"

namespace foreload {

class Completions;

// What the spans within another one took, in nanoseconds.
struct Inner {
  int64_t wall = 0, cpu = 0;
  // The same times the spans that each of them stands for: what all that are like them took, of which only
  // some are measured.
  int64_t all_wall = 0, all_cpu = 0;
};

// The calling thread's lane, batch and the consumer of that, and the spans within the current one.
struct Current {
  Lane* lane = nullptr;
  uint32_t batch = 0;
  Completions* consumer = nullptr;
  Inner inner = {};
};
Current& current();

// Makes this the calling thread's lane until the end of the scope.
class LaneScope {
 public:
  LaneScope(Lane* lane, uint32_t batch, Completions* consumer = nullptr)
      : before_(std::exchange(current(), Current{lane, batch, consumer})) {}
  ~LaneScope() { current() = before_; }
  LaneScope(const LaneScope&) = delete;
  LaneScope& operator=(const LaneScope&) = delete;

 private:
  const Current before_;
};

// Measures a span from here to the end of the scope, if the thread has a lane.
class Measure {
 public:
  // `weight`: how many spans like it this one stands for, if only some are measured.
  explicit Measure(Stage stage, uint64_t samples = 1, uint64_t weight = 1);
  ~Measure() { end(); }
  Measure(const Measure&) = delete;
  Measure& operator=(const Measure&) = delete;

  void add_bytes(uint64_t bytes) { bytes_ += bytes; }
  void set_samples(uint64_t samples) { samples_ = samples; }
  void end();

 private:
  friend class PacedMeasure;

  Lane* lane_;
  Stage stage_;
  bool with_cpu_ = false, paced_ = false;  // paced: the spans it stands for are counted by themselves
  uint64_t samples_, weight_, bytes_ = 0, begin_ = 0, cpu_ = 0;
  Inner around_;  // the spans before this one within the one around it
};

// The same for spans that may be too short to be measured each time: then one of several is, and its time
// stands for theirs. All are counted.
class PacedMeasure {
 public:
  PacedMeasure(Stage stage, uint64_t samples);
  ~PacedMeasure();
  PacedMeasure(const PacedMeasure&) = delete;
  PacedMeasure& operator=(const PacedMeasure&) = delete;

  void add_bytes(uint64_t bytes) { bytes_ += bytes; }

 private:
  const Stage stage_;
  const uint64_t samples_;
  uint64_t bytes_ = 0;
  Inner before_;
  std::optional<Measure> measure_;
};

// A stopwatch: measures spans that follow each other, with one reading of the clock for each. If all of them
// together are short, only some rounds are measured, which stand for the others, unless each is `needed`.
class Laps {
 public:
  void begin(bool needed);
  // Ends a span and begins the next; returns its seconds, 0 if this round is not measured.
  double end(Stage stage, uint64_t bytes = 0);

 private:
  bool with_cpu_ = false;
  uint32_t weight_ = 1;
  uint64_t first_ = 0, last_ = 0, cpu_ = 0;
};

}  // namespace foreload
