#include "lane.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace foreload {

namespace {

// There is one writer, so this need not be atomic as a whole. What is added may be negative.
void add_to(std::atomic<uint64_t>& sum, uint64_t value) {
  sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

uint64_t sum_of(const std::atomic<uint64_t>& sum) {
  const uint64_t value = sum.load(std::memory_order_relaxed);
  return static_cast<int64_t>(value) < 0 ? 0 : value;
}

// How long a thread of this process has waited for a core (proc(5), schedstat); 0 if the system does not say.
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

// An empty lane is zeroed memory.
struct Lane::Memory {
  struct Sum {
    std::atomic<uint64_t> count, wall, cpu, samples, bytes;
  };
  // A span in the ring, written word by word while its number is 0; then it is the span's own, from 1 on.
  // Every word is released after the 0, so a reader that acquires a word of a newer span finds the number
  // changed.
  struct Record {
    std::atomic<uint64_t> number, begin, end, bytes, batch_and_samples, stage;
  };
  std::atomic<uint64_t> spans,
      forgotten;  // the numbers of the last span written, and of the last one forgotten
  Sum sums[kStages];
  alignas(64) Record ring[kSpans];
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
  Memory::Record& record = memory_->ring[number % kSpans];
  record.number.store(0, std::memory_order_relaxed);
  record.begin.store(span.begin, std::memory_order_release);
  record.end.store(span.end, std::memory_order_release);
  record.bytes.store(span.bytes, std::memory_order_release);
  record.batch_and_samples.store(uint64_t{span.batch} << 32 | span.samples, std::memory_order_release);
  record.stage.store(static_cast<uint64_t>(span.stage), std::memory_order_release);
  record.number.store(number + 1, std::memory_order_release);
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
    const Memory::Record& record = memory_->ring[number % kSpans];
    if (record.number.load(std::memory_order_acquire) != number + 1) continue;
    Span span;
    span.begin = record.begin.load(std::memory_order_acquire);
    span.end = record.end.load(std::memory_order_acquire);
    span.bytes = record.bytes.load(std::memory_order_acquire);
    const uint64_t both = record.batch_and_samples.load(std::memory_order_acquire);
    const uint64_t stage = record.stage.load(std::memory_order_acquire);
    if (record.number.load(std::memory_order_relaxed) != number + 1 || stage >= kStages) continue;
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

}  // namespace foreload
