// The loop's time adds up.
#include <memory>

#include "busy.hpp"
#include "check.hpp"
#include "loop.hpp"

using foreload::Lane;
using foreload::Loop;
using foreload::Span;
using foreload::Stage;

int main() {
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
      loop.mark_delivered(8);
      sleep_ms(i == 2 ? 20 : 6);
    }
    loop.mark_requested();  // the last batch is delivered: what comes after that does not count
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
  CHECK(loop.sums().batches == 0 && lane->total(Stage::wait).count == 0);
}
