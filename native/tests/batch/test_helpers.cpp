// Work is shared out so that each part is done once, by the time that the call returns.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "helpers.hpp"

namespace {

// Shares out so many parts, each of which takes a while, and checks that all are done when that returns.
void check_shared(size_t parts, size_t helpers, std::chrono::microseconds each = {}) {
  const auto done = std::make_unique<std::vector<int>>(parts);  // gone soon after: nobody may come late
  foreload::share_out(parts, helpers, [&](size_t part) {
    const auto end = std::chrono::steady_clock::now() + each;
    while (std::chrono::steady_clock::now() < end) {
    }
    ++(*done)[part];
  });
  for (const int times : *done) CHECK(times == 1);
}

void check_all(size_t rounds) {
  for (size_t i = 0; i < rounds; ++i) check_shared(i % 17, i % 4);
}

}  // namespace

int main() {
  check_all(20'000);
  check_shared(1'000, 3, std::chrono::microseconds(20));
  for (int i = 0; i < 20; ++i) {  // helpers that have gone to sleep are woken up
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    check_shared(64, 2, std::chrono::microseconds(50));
  }
  // Helpers do take part.
  std::atomic<bool> is_helped{false};
  const std::thread::id own = std::this_thread::get_id();
  for (int i = 0; i < 1'000 && !is_helped; ++i) {
    foreload::share_out(8, 1, [&](size_t) {
      if (std::this_thread::get_id() != own) is_helped = true;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
  }
  CHECK(is_helped);
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
    check_shared(64, 2, std::chrono::microseconds(50));
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
#endif
  check_all(1'000);
}
