#include "helpers.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <thread>

namespace foreload {

namespace {

using Clock = std::chrono::steady_clock;
using Part = void (*)(const void*, size_t);

// How long a helper looks for more before it sleeps, and how often in between it looks at the clock. Work
// that comes within this time of the last finds helpers looking.
constexpr std::chrono::microseconds kLooking{50};
constexpr int kLooksPerTime = 64;

// How often the calling thread looks whether the last parts are done before it lets others run.
constexpr size_t kLooksBeforeYield = 2000;

// More threads do not copy faster than memory is.
constexpr size_t kMostHelpers = 7;

// The next part of work that is closed: beyond any.
constexpr uint64_t kClosed = UINT32_MAX;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Those of the process, whatever the calling thread is pinned to.
size_t allowed_cores() {
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(getpid(), sizeof allowed, &allowed) == 0)
    return static_cast<size_t>(CPU_COUNT(&allowed));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

// Blocks the signals that are for the threads of the program, not those that a thread's own errors raise.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t signals;
    sigfillset(&signals);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&signals, own);
    pthread_sigmask(SIG_SETMASK, &signals, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// The helpers of a process. They are never ended: static objects that other threads use cannot be destroyed.
class Team {
 public:
  // Returns whether there was somebody to help.
  bool share(size_t parts, size_t helpers, bool is_long, Part part, const void* context) {
    const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn || parts >= kClosed) return false;
    helpers = std::min({helpers, kMostHelpers, most_});
    while (count_ < helpers && start(count_)) ++count_;
    if (count_ == 0 || helpers == 0) return false;
    // A helper that has read what earlier work was does not get a part of it: before that changes, the number
    // of the work is another.
    const uint64_t number = (ticket_.load() >> 32) + 1;
    ticket_ = (number << 32) | kClosed;
    part_ = part;
    context_ = context;
    parts_ = parts;
    helpers_ = helpers;
    done_ = 0;
    ticket_ = number << 32;
    if (asleep_.load() > 0 && (is_long || Clock::now() - last_ < kLooking)) wake();
    while (help([] { return true; })) {
    }
    for (size_t looks = 0; done_.load() < parts; ++looks) {
      if (looks < kLooksBeforeYield) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
    last_ = Clock::now();
    return true;
  }

 private:
  bool has_parts(size_t helper) const {
    return (ticket_.load() & kClosed) < parts_.load() && helper < helpers_.load();
  }

  // Does one part; returns false if there is none, or the work allows no part for the caller.
  template <typename Allowed>
  bool help(const Allowed& is_allowed) {
    uint64_t ticket = ticket_.load();
    for (;;) {
      const uint64_t next = ticket & kClosed;
      const Part part = part_.load();
      const void* const context = context_.load();
      if (next >= parts_.load() || !is_allowed()) return false;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      part(context, next);
      done_.fetch_add(1);
      return true;
    }
  }

  void wake() {
    {
      const std::lock_guard<std::mutex> lock(sleep_);
    }  // who is about to sleep does, and so can be woken up
    woken_.notify_all();
  }

  // Starts a helper. Returns false if no more threads may be started.
  bool start(size_t helper) {
    const BlockedSignals blocked;
    try {
      std::thread([this, helper] { run(helper); }).detach();
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  [[noreturn]] void run(size_t helper) {
#ifdef __linux__
    cpu_set_t allowed;  // the thread that started this one may be pinned to a core
    if (sched_getaffinity(getpid(), sizeof allowed, &allowed) == 0)
      sched_setaffinity(0, sizeof allowed, &allowed);
#endif
    for (;;) {
      while (help([this, helper] { return helper < helpers_.load(); })) {
      }
      const Clock::time_point end = Clock::now() + kLooking;
      for (int looks = 1; !has_parts(helper); ++looks) {
        relax();
        if (looks % kLooksPerTime == 0 && Clock::now() >= end) {
          sleep(helper);
          break;
        }
      }
    }
  }

  void sleep(size_t helper) {
    std::unique_lock<std::mutex> lock(sleep_);
    asleep_.fetch_add(1);
    woken_.wait(lock, [this, helper] { return has_parts(helper); });
    asleep_.fetch_sub(1);
  }

  const size_t most_ = allowed_cores() - 1;
  std::mutex turn_;
  size_t count_ = 0;
  Clock::time_point last_;  // when the last work was done
  // The number of the work, and the next part of it.
  std::atomic<uint64_t> ticket_{kClosed};
  std::atomic<Part> part_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<size_t> parts_{0}, helpers_{0}, done_{0};
  std::mutex sleep_;
  std::condition_variable woken_;
  std::atomic<size_t> asleep_{0};
};

std::atomic<Team*> present_team{nullptr};

// A child of a fork has none of its parent's threads, and one of them may have held a lock.
[[maybe_unused]] const int watched_forks = pthread_atfork(nullptr, nullptr, [] { present_team = nullptr; });

Team& team() {
  Team* found = present_team.load();
  if (found == nullptr) {
    Team* const fresh = new Team;
    if (present_team.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
  }
  return *found;
}

}  // namespace

void share_out(size_t parts, size_t helpers, bool is_long, Part part, const void* context) {
  if (parts > 1 && helpers > 0 && team().share(parts, std::min(helpers, parts - 1), is_long, part, context))
    return;
  for (size_t number = 0; number < parts; ++number) part(context, number);
}

}  // namespace foreload
