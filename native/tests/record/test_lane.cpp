// Spans are read whole, while they are written and after their writer was killed.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "check.hpp"
#include "lane.hpp"

using foreload::Lane;
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

}  // namespace

int main() {
  test_ring();
  test_readers_see_whole_spans();
  test_shared();
}
