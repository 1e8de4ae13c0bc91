#include "loop.hpp"

#include <algorithm>

#include "clock.hpp"

namespace foreload {

namespace {

// The shortest time between two readings of the process's clock.
constexpr uint64_t kProcessClockNs = 1'000'000;

}  // namespace

void Loop::begin() {
  begin_ = process_read_ = now_ns();
  process_cpu_ = process_cpu_ns();
  delivered_ = 0;
  loop_ = loop_cpu_ = 0;
  first_ = true;
  in_loop_ = false;
  ++sums_.epochs;
}

void Loop::begun() {
  ready_ = since_ = now_ns();
  in_loop_ = true;
  with_cpu_ = rate_.due();
  if (with_cpu_) cpu_ = thread_cpu_ns();
}

void Loop::mark_requested() {
  const uint64_t now = marked_ = now_ns();
  if (!in_loop_) return;  // the request before this one raised an exception
  const int64_t wall = difference(now, since_);
  const int64_t cpu =
      with_cpu_ ? rate_.observe(wall, difference(thread_cpu_ns(), cpu_)) : rate_.estimate(wall);
  in_loop_ = false;
  since_ = now;
  // If this was the last batch of the epoch, the work on it does not count.
  loop_ = wall;
  loop_cpu_ = cpu;
  waits_with_cpu_ = wait_rate_.due();
  if (waits_with_cpu_) wait_cpu_ = thread_cpu_ns();
}

void Loop::mark() {
  marked_ = now_ns();
}

void Loop::ordered(uint64_t samples) {
  lap(Stage::order, {1, 0, 0, samples, 0});
}

void Loop::gathered(uint64_t samples, uint64_t bytes) {
  lap(Stage::batch, {1, 0, 0, samples, bytes});
}

void Loop::lap(Stage stage, const Total& sums) {
  const uint64_t begin = marked_;
  marked_ = now_ns();
  const uint64_t wall = marked_ - begin;
  // It waits for nothing that is known, and is mostly too short to read the thread's clock.
  lane_->add({begin, marked_, stage, static_cast<uint32_t>(delivered_), static_cast<uint32_t>(sums.samples),
              sums.bytes},
             {sums.count, wall, wall, sums.samples, sums.bytes});
}

void Loop::mark_delivered(uint64_t samples) {
  const uint64_t now = now_ns();
  if (first_) {
    first_ = false;
    sums_.epochs = std::max<uint64_t>(1, sums_.epochs);  // in a fork, no epoch has begun
    sums_.began_ns = begin_;
    sums_.first_ns = now - begin_;
    sums_.wait_ns += ready_ - begin_;
    lane_->add({begin_, ready_, Stage::wait, 0, 0, 0}, {0, ready_ - begin_, 0, 0, 0});
  }
  const uint64_t waited = now - since_;
  const int64_t wall = static_cast<int64_t>(waited);
  // The CPU time of the wait is what the consumer spends on requesting batches and taking them over.
  const int64_t cpu = waits_with_cpu_ ? wait_rate_.observe(wall, difference(thread_cpu_ns(), wait_cpu_))
                                      : wait_rate_.estimate(wall);
  waits_with_cpu_ = false;
  lane_->add({since_, now, Stage::wait, static_cast<uint32_t>(delivered_), static_cast<uint32_t>(samples), 0},
             {1, waited, static_cast<uint64_t>(cpu), samples, 0});
  sums_.loop_ns += static_cast<uint64_t>(loop_);
  sums_.loop_cpu_ns += static_cast<uint64_t>(loop_cpu_);
  loop_ = loop_cpu_ = 0;
  sums_.wait_ns += waited;
  ++sums_.batches;
  sums_.samples += samples;
  ++delivered_;
  if (now - process_read_ > kProcessClockNs) {
    process_read_ = now;
    const uint64_t before = std::exchange(process_cpu_, process_cpu_ns());
    sums_.process_cpu_ns += process_cpu_ - before;
  }
  since_ = now;
  in_loop_ = true;
  with_cpu_ = rate_.due();
  if (with_cpu_) cpu_ = thread_cpu_ns();
}

void Loop::clear() {
  sums_ = {};
  begin_ = ready_ = since_ = now_ns();
  first_ = true;
  loop_ = loop_cpu_ = 0;
  process_cpu_ = process_cpu_ns();
  if (lane_) lane_->clear();
}

}  // namespace foreload
