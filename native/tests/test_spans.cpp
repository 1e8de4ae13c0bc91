#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "check.hpp"
#include "pool.hpp"
#include "spans.hpp"

using foreload::current;
using foreload::Glance;
using foreload::Lane;
using foreload::Laps;
using foreload::Loop;
using foreload::Measure;
using foreload::Scope;
using foreload::Span;
using foreload::Stage;
using foreload::Total;

namespace {

// Every field of a span follows from its number, so that half of one is seen.
Span numbered(uint64_t number) {
  return {number,
          3 * number,
          static_cast<Stage>(number % foreload::kStages),
          static_cast<uint32_t>(number),
          static_cast<uint32_t>(7 * number),
          11 * number};
}

void check_whole(const std::vector<Span>& spans) {
  uint64_t before = 0;
  for (const Span& span : spans) {
    const Span expected = numbered(span.begin);
    CHECK(span.begin > before && span.end == expected.end && span.stage == expected.stage);
    CHECK(span.batch == expected.batch && span.samples == expected.samples && span.bytes == expected.bytes);
    before = span.begin;
  }
}

void write(Lane& lane, uint64_t first, uint64_t count) {
  for (uint64_t number = first; number < first + count; ++number) lane.add(numbered(number), {1, 2, 1, 3, 4});
}

void test_ring() {
  Lane lane;
  CHECK(lane.recent().empty());
  write(lane, 1, 10);
  CHECK(lane.recent().size() == 10);
  write(lane, 11, 2 * Lane::kSpans);
  const auto spans = lane.recent();
  CHECK(spans.size() == Lane::kSpans && spans.back().begin == 10 + 2 * Lane::kSpans);
  check_whole(spans);
  const Total total = lane.total(Stage::read);
  CHECK(total.count > 0 && total.wall_ns == 2 * total.count && total.bytes == 4 * total.count);
  lane.clear();
  CHECK(lane.recent().empty() && lane.total(Stage::read).count == 0);
  write(lane, 1, 3);
  CHECK(lane.recent().size() == 3);
}

void test_readers_see_whole_spans() {
  Lane lane;
  std::atomic<bool> over{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      uint64_t count = 0;
      while (!over.load()) {
        check_whole(lane.recent());
        const uint64_t now = lane.total(Stage::order).count;
        CHECK(now >= count);
        count = now;
      }
    });
  }
  write(lane, 1, 300'000);
  over = true;
  for (auto& reader : readers) reader.join();
  check_whole(lane.recent());
}

// A writer that is killed leaves what it wrote, and another goes on.
void test_shared() {
  const int file = memfd_create("test", 0);
  CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(2 * Lane::kBytes)) == 0);
  Lane lane(file, Lane::kBytes);
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      Lane own(file, Lane::kBytes);
      uint64_t last = 0;
      for (const Span& span : own.recent()) last = span.begin;
      for (;;) write(own, ++last, 1);
    }
    const uint64_t before = lane.total(Stage::read).count;
    while (lane.total(Stage::read).count < before + 1000) check_whole(lane.recent());
    kill(child, SIGKILL);
    CHECK(waitpid(child, nullptr, 0) == child);
    const auto spans = lane.recent();
    check_whole(spans);
    CHECK(spans.size() + 1 >= std::min<size_t>(Lane::kSpans, spans.back().begin));
  }
  const Lane other(file, 0);
  CHECK(other.recent().empty());
  close(file);
}

void sleep_ms(int count) {
  std::this_thread::sleep_for(std::chrono::milliseconds(count));
}

void spin_ms(int count) {
  const uint64_t end = foreload::thread_cpu_ns() + static_cast<uint64_t>(count) * 1'000'000;
  while (foreload::thread_cpu_ns() < end) {
  }
}

void test_measures() {
  {
    Measure nobody(Stage::read);  // no lane
  }
  CHECK(current().lane == nullptr);
  Lane lane;
  {
    const Scope scope(&lane, 7);
    Measure outer(Stage::sample, 64);
    spin_ms(4);
    {
      Measure inner(Stage::read, 2);
      inner.add_bytes(100);
      sleep_ms(10);
    }
    spin_ms(2);
  }
  CHECK(current().lane == nullptr);
  const Total sample = lane.total(Stage::sample), read = lane.total(Stage::read);
  CHECK(sample.count == 1 && sample.samples == 64 && read.samples == 2 && read.bytes == 100);
  CHECK(read.wall_ns >= 10'000'000 && read.cpu_ns <= read.wall_ns / 2);
  CHECK(sample.cpu_ns >= 5'900'000 && sample.wall_ns >= sample.cpu_ns);
  const auto spans = lane.recent();
  CHECK(spans.size() == 2 && spans[0].stage == Stage::read && spans[1].batch == 7);
  CHECK(spans[1].begin <= spans[0].begin && spans[0].end <= spans[1].end);
  // What is left of the outer one is what the inner one did not take, nanosecond by nanosecond.
  CHECK(spans[1].end - spans[1].begin == sample.wall_ns + read.wall_ns);
}

void test_weights() {
  Lane lane;
  const Scope scope(&lane, 0);
  {
    Measure outer(Stage::sample, 10);
    Measure inner(Stage::transform, 1, 10);
    inner.add_bytes(5);
    sleep_ms(2);
    inner.end();
    sleep_ms(30);
  }
  const Total transform = lane.total(Stage::transform), sample = lane.total(Stage::sample);
  CHECK(transform.count == 10 && transform.samples == 10 && transform.bytes == 50);
  CHECK(transform.wall_ns >= 20'000'000);
  const auto spans = lane.recent();
  CHECK(transform.wall_ns == 10 * (spans[0].end - spans[0].begin));
  const uint64_t whole = spans[1].end - spans[1].begin;
  CHECK(sample.wall_ns == (whole > transform.wall_ns ? whole - transform.wall_ns : 0));
  for (int i = 0; i < 33; ++i) {
    Glance glance(Stage::read, 2);
    glance.add_bytes(3);
  }
  const Total read = lane.total(Stage::read);
  CHECK(read.count == 33 && read.samples == 66 && read.bytes == 99);
  size_t looked = 0;
  for (const Span& span : lane.recent()) looked += span.stage == Stage::read;
  CHECK(looked >= 1 && looked < 33);
  for (int i = 0; i < 5; ++i) {
    Glance glance(Stage::decode, 1);
    sleep_ms(1);
  }
  // What is long is measured each time.
  CHECK(lane.total(Stage::decode).wall_ns >= 5'000'000 && lane.recent().size() == 2 + looked + 5);
}

void test_laps() {
  Laps alone;
  alone.begin(true);
  sleep_ms(2);
  CHECK(alone.end(Stage::read) >= 0.002);
  Lane lane;
  {
    const Scope scope(&lane, 0);
    Measure outer(Stage::sample);
    Laps laps;
    laps.begin(true);
    sleep_ms(3);
    laps.end(Stage::read, 9);
    spin_ms(3);
    laps.end(Stage::decode);
  }
  const auto spans = lane.recent();
  CHECK(spans.size() == 3 && spans[0].end == spans[1].begin && spans[0].bytes == 9);
  CHECK(lane.total(Stage::decode).cpu_ns >= 2'900'000 && lane.total(Stage::read).cpu_ns < 1'500'000);
  CHECK(lane.total(Stage::sample).wall_ns < 3'000'000);
}

// Where the thread's clock is looked at now and then only, sums are about right.
void test_cpu_rate() {
  foreload::CpuRate rate;
  CHECK(rate.due());
  int64_t looked = 0, cpu = 0;
  for (int i = 0; i < 100'000; ++i) {
    const bool due = rate.due();
    looked += due;
    cpu += due ? rate.saw(1000, 250) : rate.guess(1000);
  }
  CHECK(looked > 12 && looked < 50);
  CHECK(cpu == 25'000'000);
  CHECK(rate.saw(100, 5000) == 100 && rate.saw(100, -5) == 0);
}

void test_loop() {
  const auto lane = std::make_shared<Lane>();
  Loop loop(lane);
  for (int epoch = 0; epoch < 2; ++epoch) {
    loop.begin();
    sleep_ms(4);
    loop.begun();
    for (int i = 0; i < 3; ++i) {
      loop.mark_requested();
      loop.ordered(8);
      sleep_ms(2);
      loop.mark_delivered(8, 1);
      sleep_ms(i == 2 ? 20 : 6);
    }
    loop.mark_requested();  // the last batch is given: what comes after that does not count
    sleep_ms(20);
  }
  const Loop::Sums& sums = loop.sums();
  CHECK(sums.epochs == 2 && sums.batches == 6 && sums.samples == 48);
  CHECK(sums.wait_ns >= 20'000'000 && sums.loop_ns >= 24'000'000);
  CHECK(sums.loop_cpu_ns < sums.loop_ns);
  CHECK(sums.first_ns >= 6'000'000);
  CHECK(lane->total(Stage::wait).wall_ns == sums.wait_ns && lane->total(Stage::wait).count == 6);
  CHECK(lane->total(Stage::order).samples == 48);
  // Between the first iter() and the last batch of an epoch, all is one or the other.
  uint64_t whole = 0, begin = 0, end = 0;
  for (const Span& span : lane->recent()) {
    if (span.stage != Stage::wait) continue;
    if (span.samples == 0) {
      whole += end - begin;
      begin = span.begin;
    }
    end = span.end;
  }
  CHECK(whole + end - begin == sums.wait_ns + sums.loop_ns);
  loop.clear();
  for (int i = 0; i < 5; ++i) {
    loop.begin();
    loop.begun();
    loop.mark_requested();
    CHECK(loop.pays_together() == 1);  // no loop has been seen to take more
  }
  loop.mark_delivered(32, 4);
  sleep_ms(8);
  loop.mark_requested();  // three of the four took 6 ms
  CHECK(loop.sums().loop_ns >= 6'000'000);
  loop.take_back(8, 1);
  CHECK(loop.sums().batches == 3 && loop.sums().samples == 24);
}

class Timed : public foreload::Job {
 public:
  Timed() : Job(6, 2) {}
  void run(size_t begin, size_t end, size_t) override {
    Measure measure(Stage::sample, end - begin);
    sleep_ms(1);
  }
};

void test_pool() {
  Lane lanes[3];
  foreload::Pool pool;
  std::thread threads[2];
  for (size_t i = 0; i < 2; ++i) threads[i] = std::thread([&, i] { pool.work(i, &lanes[i]); });
  const auto completions = std::make_shared<foreload::Completions>();
  for (uint32_t number = 0; number < 4; ++number) {
    auto job = std::make_shared<Timed>();
    pool.submit(job, completions, number);
  }
  for (int i = 0; i < 4; ++i) {
    std::shared_ptr<foreload::Job> job;
    CHECK(completions->wait(30, job) == foreload::Completions::Wait::done);
  }
  pool.close();
  for (auto& thread : threads) thread.join();
  CHECK(lanes[0].total(Stage::sample).samples + lanes[1].total(Stage::sample).samples == 24);
  uint32_t batches = 0;
  for (const Lane& lane : lanes) {
    for (const Span& span : lane.recent()) batches |= 1U << span.batch;
  }
  CHECK(batches == 0b1111);
  Timed here;
  here.run_in(lanes[2], 3);
  CHECK(lanes[2].total(Stage::sample).samples == 6);
}

}  // namespace

int main() {
  test_ring();
  test_readers_see_whole_spans();
  test_shared();
  test_measures();
  test_weights();
  test_laps();
  test_cpu_rate();
  test_loop();
  test_pool();
}
