#include "spans.hpp"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace foreload {

namespace {

// How long another look at the process's clock must wait.
constexpr uint64_t kLookNs = 1'000'000;

uint64_t read_clock(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

int64_t difference(uint64_t end, uint64_t begin) {
  return static_cast<int64_t>(end - begin);
}

// There is one writer, so that this need not be one operation. What is added may be negative.
void add_to(std::atomic<uint64_t>& sum, uint64_t value) {
  sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

uint64_t sum_of(const std::atomic<uint64_t>& sum) {
  const uint64_t value = sum.load(std::memory_order_relaxed);
  return static_cast<int64_t>(value) < 0 ? 0 : value;
}

// What a thread of this process has waited for a core (proc(5), schedstat); 0 where nobody says.
uint64_t queued_ns_of(int thread) {
  char text[64];
  std::snprintf(text, sizeof text, "/proc/self/task/%d/schedstat", thread);
  const int file = open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = 0;
  unsigned long long ran = 0, queued = 0;
  return std::sscanf(text, "%llu %llu", &ran, &queued) == 2 ? queued : 0;
}

}  // namespace

uint64_t now_ns() {
  return read_clock(CLOCK_MONOTONIC);
}

uint64_t thread_cpu_ns() {
  return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

int64_t CpuRate::guess(int64_t wall) {
  credit_ = std::min(kMost, credit_ + wall);
  return static_cast<int64_t>(static_cast<double>(wall) * share_);
}

int64_t CpuRate::saw(int64_t wall, int64_t cpu) {
  credit_ = std::min(kMost, credit_ - kEach + wall);
  cpu = std::clamp<int64_t>(cpu, 0, std::max<int64_t>(0, wall));
  wall_ += wall;
  cpu_ += cpu;
  if (wall_ > 0) share_ = static_cast<double>(cpu_) / static_cast<double>(wall_);
  return cpu;
}

uint32_t Pace::weight() {
  if (skipped_ < skip_) {
    ++skipped_;
    return 0;
  }
  return std::exchange(skipped_, 0) + 1;
}

void Pace::saw(int64_t wall) {
  skip_ = static_cast<uint32_t>(std::min(kMost, kEach / std::max<int64_t>(1, wall)));
}

// Zeroed memory is an empty one.
struct Lane::Memory {
  struct Sum {
    std::atomic<uint64_t> count, wall, cpu, samples, bytes;
  };
  // Written word by word between two numbers: 0, and the span's own from 1 on. Every word is released after
  // the 0, so whoever acquires a word of a newer span finds the number changed.
  struct Slot {
    std::atomic<uint64_t> number, begin, end, bytes, batch_and_samples, stage;
  };
  std::atomic<uint64_t> spans, forgotten;  // so many were written, and are not to be read any more
  Sum sums[kStages];
  alignas(64) Slot ring[kSpans];
};

constexpr size_t kPage = 4096;
const size_t Lane::kBytes = (sizeof(Lane::Memory) + kPage - 1) / kPage * kPage;

Lane::Lane() : memory_(static_cast<Memory*>(std::calloc(1, kBytes))) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  if (memory_ == nullptr) throw std::bad_alloc();
}

Lane::Lane(int file, size_t offset)
    : shared_(std::make_unique<Mapping>(file, offset, kBytes)),
      memory_(reinterpret_cast<Memory*>(shared_->memory())) {}

Lane::~Lane() {
  if (!shared_) std::free(memory_);
}

void Lane::count(Stage stage, const Total& sums) {
  Memory::Sum& sum = memory_->sums[static_cast<size_t>(stage)];
  add_to(sum.count, sums.count);
  add_to(sum.wall, sums.wall_ns);
  add_to(sum.cpu, sums.cpu_ns);
  add_to(sum.samples, sums.samples);
  add_to(sum.bytes, sums.bytes);
}

void Lane::add(const Span& span, const Total& sums) {
  count(span.stage, sums);
  const uint64_t number = memory_->spans.load(std::memory_order_relaxed);
  Memory::Slot& slot = memory_->ring[number % kSpans];
  slot.number.store(0, std::memory_order_relaxed);
  slot.begin.store(span.begin, std::memory_order_release);
  slot.end.store(span.end, std::memory_order_release);
  slot.bytes.store(span.bytes, std::memory_order_release);
  slot.batch_and_samples.store(uint64_t{span.batch} << 32 | span.samples, std::memory_order_release);
  slot.stage.store(static_cast<uint64_t>(span.stage), std::memory_order_release);
  slot.number.store(number + 1, std::memory_order_release);
  memory_->spans.store(number + 1, std::memory_order_release);
}

Total Lane::total(Stage stage) const {
  const Memory::Sum& sum = memory_->sums[static_cast<size_t>(stage)];
  return {sum_of(sum.count), sum_of(sum.wall), sum_of(sum.cpu), sum_of(sum.samples), sum_of(sum.bytes)};
}

std::vector<Span> Lane::recent() const {
  const uint64_t end = memory_->spans.load(std::memory_order_acquire);
  std::vector<Span> spans;
  uint64_t number =
      std::max(end > kSpans ? end - kSpans : 0, memory_->forgotten.load(std::memory_order_relaxed));
  for (; number < end; ++number) {
    const Memory::Slot& slot = memory_->ring[number % kSpans];
    if (slot.number.load(std::memory_order_acquire) != number + 1) continue;
    Span span;
    span.begin = slot.begin.load(std::memory_order_acquire);
    span.end = slot.end.load(std::memory_order_acquire);
    span.bytes = slot.bytes.load(std::memory_order_acquire);
    const uint64_t both = slot.batch_and_samples.load(std::memory_order_acquire);
    const uint64_t stage = slot.stage.load(std::memory_order_acquire);
    if (slot.number.load(std::memory_order_relaxed) != number + 1 || stage >= kStages) continue;
    span.batch = static_cast<uint32_t>(both >> 32);
    span.samples = static_cast<uint32_t>(both);
    span.stage = static_cast<Stage>(stage);
    spans.push_back(span);
  }
  return spans;
}

void Lane::clear() {
  for (Memory::Sum& sum : memory_->sums) {
    for (auto* word : {&sum.count, &sum.wall, &sum.cpu, &sum.samples, &sum.bytes}) {
      word->store(0, std::memory_order_relaxed);
    }
  }
  memory_->forgotten.store(memory_->spans.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void Lane::enter() {
  const std::lock_guard lock(mutex_);
  thread_ = gettid();
}

void Lane::leave() {
  const uint64_t queued = queued_ns_of(gettid());
  const std::lock_guard lock(mutex_);
  thread_ = 0;
  queued_ns_ += queued;
}

uint64_t Lane::queued_ns() const {
  const std::lock_guard lock(mutex_);
  return queued_ns_ + (thread_ == 0 ? 0 : queued_ns_of(thread_));
}

Current& current() {
  thread_local Current current;
  return current;
}

Measure::Measure(Stage stage, uint64_t samples, uint64_t weight)
    : lane_(current().lane), stage_(stage), samples_(samples), weight_(weight) {
  if (lane_ == nullptr) return;
  Current& now = current();
  inner_ = std::exchange(now.inner, 0);
  inner_cpu_ = std::exchange(now.inner_cpu, 0);
  with_cpu_ = lane_->cpu_rate(stage).due();
  begin_ = now_ns();
  if (with_cpu_) cpu_ = thread_cpu_ns();
}

void Measure::end() {
  Lane* const lane = std::exchange(lane_, nullptr);
  if (lane == nullptr) return;
  Current& now = current();
  const uint64_t cpu_end = with_cpu_ ? thread_cpu_ns() : 0, end = now_ns();
  const int64_t own = difference(end, begin_) - now.inner;
  CpuRate& rate = lane->cpu_rate(stage_);
  const int64_t cpu = with_cpu_ ? rate.saw(own, difference(cpu_end, cpu_) - now.inner_cpu) : rate.guess(own);
  const auto weight = static_cast<int64_t>(weight_);
  const uint64_t each = glances_ ? 1 : weight_;
  if (glances_) lane->pace(stage_).saw(own);
  lane->add({begin_, end, stage_, now.batch, static_cast<uint32_t>(samples_), bytes_},
            {each, static_cast<uint64_t>(weight * own), static_cast<uint64_t>(weight * cpu), each * samples_,
             each * bytes_});
  now.inner = inner_ + now.inner + weight * own;
  now.inner_cpu = inner_cpu_ + now.inner_cpu + weight * cpu;
}

Glance::Glance(Stage stage, uint64_t samples) : stage_(stage), samples_(samples) {
  Lane* const lane = current().lane;
  if (lane == nullptr) return;
  if (const uint32_t weight = lane->pace(stage).weight(); weight > 0) {
    measure_.emplace(stage, samples, weight);
    measure_->glances_ = true;
  }
}

Glance::~Glance() {
  Lane* const lane = current().lane;
  if (measure_) {
    measure_->add_bytes(bytes_);
  } else if (lane != nullptr) {
    lane->count(stage_, {1, 0, 0, samples_, bytes_});
  }
}

void Laps::begin(bool needed) {
  Lane* const lane = current().lane;
  weight_ = lane == nullptr || needed ? 1 : lane->pace(Stage::decode).weight();
  if (weight_ == 0) return;
  with_cpu_ =
      lane != nullptr && (lane->cpu_rate(Stage::decode).due() || lane->cpu_rate(Stage::transform).due());
  first_ = last_ = now_ns();
  if (with_cpu_) cpu_ = thread_cpu_ns();
}

double Laps::end(Stage stage, uint64_t bytes) {
  if (weight_ == 0) {
    current().lane->count(stage, {1, 0, 0, 1, bytes});
    return 0;
  }
  const uint64_t begin = last_;
  last_ = now_ns();
  const int64_t wall = difference(last_, begin);
  Current& now = current();
  if (now.lane != nullptr) {
    CpuRate& rate = now.lane->cpu_rate(stage);
    int64_t cpu;
    if (with_cpu_) {
      const uint64_t cpu_begin = std::exchange(cpu_, thread_cpu_ns());
      cpu = rate.saw(wall, difference(cpu_, cpu_begin));
    } else {
      cpu = rate.guess(wall);
    }
    now.lane->add({begin, last_, stage, now.batch, 1, bytes},
                  {1, static_cast<uint64_t>(weight_ * wall), static_cast<uint64_t>(weight_ * cpu), 1, bytes});
    now.lane->pace(Stage::decode).saw(difference(last_, first_));
    now.inner += weight_ * wall;
    now.inner_cpu += weight_ * cpu;
  }
  return static_cast<double>(wall) * 1e-9;
}

void Loop::begin() {
  iter_ = looked_ = now_ns();
  process_cpu_ = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  given_ = taken_ns_ = 0;
  together_ = 1;
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
  if (!in_loop_) return;  // the last one was an exception
  const int64_t wall = difference(now, since_);
  taken_ns_ = given_ > 0 ? now - since_ : 0;  // not what comes before the first batch
  const int64_t cpu = with_cpu_ ? rate_.saw(wall, difference(thread_cpu_ns(), cpu_)) : rate_.guess(wall);
  in_loop_ = false;
  since_ = now;
  // The last batch may turn out to be the last of all: what is done with that does not count.
  loop_ = wall;
  loop_cpu_ = cpu;
  if (together_ > 1) {
    loop_ /= static_cast<int64_t>(together_);
    loop_cpu_ /= static_cast<int64_t>(together_);
    sums_.loop_ns += static_cast<uint64_t>(wall - loop_);
    sums_.loop_cpu_ns += static_cast<uint64_t>(cpu - loop_cpu_);
  }
  waits_with_cpu_ = wait_rate_.due();
  if (waits_with_cpu_) wait_cpu_ = thread_cpu_ns();
}

uint64_t Loop::pays_together() {
  if (taken_ns_ > 0) pays_ = std::clamp<uint64_t>(together_ * kMoment / taken_ns_, 1, 2 * pays_);
  return pays_;
}

void Loop::mark() {
  marked_ = now_ns();
}

void Loop::ordered(uint64_t samples) {
  lap(Stage::order, {1, 0, 0, samples, 0});
}

void Loop::gathered(uint64_t samples, uint64_t bytes, uint64_t batches) {
  lap(Stage::batch, {batches, 0, 0, samples, bytes});
}

void Loop::lap(Stage stage, const Total& sums) {
  const uint64_t begin = marked_;
  marked_ = now_ns();
  const uint64_t wall = marked_ - begin;
  // It is not known to wait for anything, and mostly too short to look.
  lane_->add(
      {begin, marked_, stage, static_cast<uint32_t>(given_), static_cast<uint32_t>(sums.samples), sums.bytes},
      {sums.count, wall, wall, sums.samples, sums.bytes});
}

void Loop::mark_delivered(uint64_t samples, uint64_t batches) {
  const uint64_t now = now_ns();
  if (first_) {
    first_ = false;
    sums_.epochs = std::max<uint64_t>(1, sums_.epochs);  // in a fork, none has begun
    sums_.began_ns = iter_;
    sums_.first_ns = now - iter_;
    sums_.wait_ns += ready_ - iter_;
    lane_->add({iter_, ready_, Stage::wait, 0, 0, 0}, {0, ready_ - iter_, 0, 0, 0});
  }
  const uint64_t waited = now - since_;
  const int64_t wall = static_cast<int64_t>(waited);
  // What it does itself, to ask for batches and to take them over.
  const int64_t cpu =
      waits_with_cpu_ ? wait_rate_.saw(wall, difference(thread_cpu_ns(), wait_cpu_)) : wait_rate_.guess(wall);
  waits_with_cpu_ = false;
  lane_->add({since_, now, Stage::wait, static_cast<uint32_t>(given_), static_cast<uint32_t>(samples), 0},
             {batches, waited, static_cast<uint64_t>(cpu), samples, 0});
  sums_.loop_ns += static_cast<uint64_t>(loop_);
  sums_.loop_cpu_ns += static_cast<uint64_t>(loop_cpu_);
  loop_ = loop_cpu_ = 0;
  sums_.wait_ns += waited;
  sums_.batches += batches;
  sums_.samples += samples;
  given_ += batches;
  together_ = batches;
  if (now - looked_ > kLookNs) {
    looked_ = now;
    const uint64_t before = std::exchange(process_cpu_, read_clock(CLOCK_PROCESS_CPUTIME_ID));
    sums_.process_cpu_ns += process_cpu_ - before;
  }
  since_ = now;
  in_loop_ = true;
  with_cpu_ = rate_.due();
  if (with_cpu_) cpu_ = thread_cpu_ns();
}

void Loop::take_back(uint64_t samples, uint64_t batches) {
  sums_.samples -= samples;
  sums_.batches -= batches;
}

void Loop::clear() {
  sums_ = {};
  iter_ = ready_ = since_ = now_ns();
  first_ = true;
  loop_ = loop_cpu_ = 0;
  process_cpu_ = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  if (lane_) lane_->clear();
}

}  // namespace foreload
