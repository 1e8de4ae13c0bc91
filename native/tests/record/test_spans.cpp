// Spans add up, however they are nested, and whichever of them are measured.
#include <memory>
#include <thread>

#include "busy.hpp"
#include "check.hpp"
#include "pool.hpp"
#include "spans.hpp"

using foreload::current;
using foreload::Lane;
using foreload::LaneScope;
using foreload::Laps;
using foreload::Measure;
using foreload::PacedMeasure;
using foreload::Span;
using foreload::Stage;
using foreload::Total;

namespace {

void test_measures() {
  {
    Measure unused(Stage::read);  // no lane
  }
  CHECK(current().lane == nullptr);
  Lane lane;
  {
    const LaneScope scope(&lane, 7);
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
  const LaneScope scope(&lane, 0);
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
    PacedMeasure measure(Stage::read, 2);
    measure.add_bytes(3);
  }
  const Total read = lane.total(Stage::read);
  CHECK(read.count == 33 && read.samples == 66 && read.bytes == 99);
  size_t looked = 0;
  for (const Span& span : lane.recent()) looked += span.stage == Stage::read;
  CHECK(looked >= 1 && looked < 33);
  for (int i = 0; i < 5; ++i) {
    PacedMeasure measure(Stage::decode, 1);
    sleep_ms(1);
  }
  // Long spans are measured each time.
  CHECK(lane.total(Stage::decode).wall_ns >= 5'000'000 && lane.recent().size() == 2 + looked + 5);
}

void test_laps() {
  Laps alone;
  alone.begin(true);
  sleep_ms(2);
  CHECK(alone.end(Stage::read) >= 0.002);
  Lane lane;
  {
    const LaneScope scope(&lane, 0);
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

// The CPU time is about right though the thread's clock is read only now and then.
void test_cpu_rate() {
  foreload::CpuRate rate;
  CHECK(rate.due());
  int64_t looked = 0, cpu = 0;
  for (int i = 0; i < 100'000; ++i) {
    const bool due = rate.due();
    looked += due;
    cpu += due ? rate.observe(1000, 250) : rate.estimate(1000);
  }
  CHECK(looked > 12 && looked < 50);
  CHECK(cpu == 25'000'000);
  CHECK(rate.observe(100, 5000) == 100 && rate.observe(100, -5) == 0);
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
  test_measures();
  test_weights();
  test_laps();
  test_cpu_rate();
  test_pool();
}
