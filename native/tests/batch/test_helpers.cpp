// Work is shared out so that each part is done once, by the time that the call returns.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "check.hpp"
#include "helpers.hpp"

namespace {

// Shares out so many parts, each of which takes a while, and checks that all are done when that returns.
// Returns how many threads did any.
size_t check_shared(size_t parts, size_t helpers, std::chrono::microseconds each = {}, bool is_long = false) {
  const auto done = std::make_unique<std::vector<int>>(parts);  // gone soon after: nobody may come late
  const auto by = std::make_unique<std::vector<std::thread::id>>(parts);
  foreload::share_out(parts, helpers, is_long, [&](size_t part) {
    const auto end = std::chrono::steady_clock::now() + each;
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
    ++(*done)[part];
    (*by)[part] = std::this_thread::get_id();
  });
  for (const int times : *done) CHECK(times == 1);
  return std::set<std::thread::id>(by->begin(), by->end()).size();
}

void check_all(size_t rounds) {
  for (size_t i = 0; i < rounds; ++i) check_shared(i % 17, i % 4);
}

// Whether helpers come, if work is long, or comes often. (On a single core there are none.)
void check_helped() {
  if (std::thread::hardware_concurrency() < 2) return;
  for (const bool is_long : {true, false}) {
    size_t threads = 1;
    for (int i = 0; i < 1'000 && threads == 1; ++i)
      threads = check_shared(8, 1, std::chrono::microseconds(200), is_long);
    CHECK(threads == 2);
  }
}

}  // namespace

int main() {
  check_all(20'000);
  check_shared(1'000, 3, std::chrono::microseconds(20));
  for (int i = 0; i < 20; ++i) {  // helpers that have gone to sleep are woken up
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    check_shared(64, 2, std::chrono::microseconds(50), true);
  }
  check_helped();
  // Helpers that there are already are no more than the call allows.
  for (int i = 0; i < 50; ++i) {
    check_shared(50, 7, std::chrono::microseconds(20), true);
    CHECK(check_shared(50, 1, std::chrono::microseconds(20), true) <= 2);
    CHECK(check_shared(50, 0) == 1);
  }
  // Threads that share out work at once do not get in each other's way.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { check_all(3'000); });
  for (std::thread& thread : threads) thread.join();
  // A child has none of its parent's threads, but helpers of its own. (TSan starts no threads in such a
  // child.)
#ifndef __SANITIZE_THREAD__
  const pid_t child = fork();
  if (child == 0) {
    check_all(1'000);
    check_helped();
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
#endif
  check_all(1'000);
}
