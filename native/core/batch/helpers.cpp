#include "helpers.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace foreload {

namespace {

using Part = std::function<void(size_t)>;

// How long a helper looks for more before it sleeps, and how often in between it looks at the clock.
constexpr std::chrono::microseconds kLooking{50};
constexpr int kLooksPerTime = 64;

// How often the calling thread looks whether the last parts are done before it lets others run.
constexpr int kLooksBeforeYield = 2000;

// The next part of work that is closed: beyond any.
constexpr uint64_t kClosed = UINT32_MAX;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The helpers of a process. They are never ended: static objects that other threads use cannot be destroyed.
class Team {
 public:
  const pid_t process = getpid();

  // Returns whether there was somebody to help.
  bool share(size_t parts, size_t helpers, const Part& part) {
    const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn || parts >= kClosed) return false;
    while (count_ < helpers && start()) ++count_;
    if (count_ == 0) return false;
    // A helper that has read the fields of earlier work does not get a part of it, as the number of the work
    // is another before they change.
    const uint64_t number = (ticket_.load() >> 32) + 1;
    ticket_ = (number << 32) | kClosed;
    part_ = &part;
    parts_ = parts;
    done_ = 0;
    ticket_ = number << 32;
    wake(helpers);
    while (help()) {
    }
    for (int looks = 0; done_.load() < parts; ++looks)
      looks < kLooksBeforeYield ? pause() : std::this_thread::yield();
    return true;
  }

 private:
  bool has_parts() const { return (ticket_.load() & kClosed) < parts_.load(); }

  // Does one part; returns false if there is none.
  bool help() {
    uint64_t ticket = ticket_.load();
    for (;;) {
      const uint64_t next = ticket & kClosed;
      const Part* const part = part_.load();
      if (next >= parts_.load()) return false;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      (*part)(next);
      done_.fetch_add(1);
      return true;
    }
  }

  void wake(size_t helpers) {
    const size_t asleep = asleep_.load();
    if (asleep == 0) return;
    {
      const std::lock_guard<std::mutex> lock(sleep_);
    }  // who is about to sleep does, and so can be woken up
    for (size_t i = 0; i < std::min(helpers, asleep); ++i) woken_.notify_one();
  }

  // Starts a helper. Returns false if no more threads may be started.
  bool start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
    bool is_started = true;
    try {
      std::thread([this] { run(); }).detach();
    } catch (const std::system_error&) {
      is_started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return is_started;
  }

  [[noreturn]] void run() {
    for (;;) {
      while (help()) {
      }
      const auto end = std::chrono::steady_clock::now() + kLooking;
      for (int looks = 1; !has_parts(); ++looks) {
        pause();
        if (looks % kLooksPerTime == 0 && std::chrono::steady_clock::now() >= end) {
          sleep();
          break;
        }
      }
    }
  }

  void sleep() {
    std::unique_lock<std::mutex> lock(sleep_);
    asleep_.fetch_add(1);
    woken_.wait(lock, [this] { return has_parts(); });
    asleep_.fetch_sub(1);
  }

  std::mutex turn_;
  size_t count_ = 0;
  // The number of the work, and the next part of it.
  std::atomic<uint64_t> ticket_{kClosed};
  std::atomic<const Part*> part_{nullptr};
  std::atomic<size_t> parts_{0}, done_{0};
  std::mutex sleep_;
  std::condition_variable woken_;
  std::atomic<size_t> asleep_{0};
};

Team& team() {
  static std::atomic<Team*> current{nullptr};
  Team* found = current.load();
  while (found == nullptr || found->process != getpid()) {
    Team* const fresh = new Team;
    if (current.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
  }
  return *found;
}

}  // namespace

void share_out(size_t parts, size_t helpers, const Part& part) {
  if (parts > 1 && helpers > 0 && team().share(parts, std::min(helpers, parts - 1), part)) return;
  for (size_t number = 0; number < parts; ++number) part(number);
}

}  // namespace foreload
