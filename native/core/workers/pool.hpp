// A pool of threads, which take runs of samples from the oldest batch that has any left.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "spans.hpp"

namespace foreload {

// A batch to be made, `count` samples in runs of at most `grain`. Several workers may run parts of it.
class Job {
 public:
  Job(size_t count, size_t grain);
  virtual ~Job() = default;

  // Makes samples [begin, end). Must not throw: a failure is part of the result.
  virtual void run(size_t begin, size_t end, size_t worker) = 0;
  // Called once, by the worker that finished the last run.
  virtual void finish(size_t worker) { (void)worker; }

  // Makes all of it in the calling thread.
  void run_here();
  // The same as batch `number` of an epoch; the thread writes its spans to `lane`.
  void run_in(Lane& lane, uint32_t number);

  // Whether workers of a pool have finished it.
  bool is_finished() const { return finished_.load(std::memory_order_acquire); }

 private:
  friend class Pool;
  size_t count_, grain_, claimed_ = 0;  // guarded by the pool's mutex
  uint32_t number_ = 0;
  std::atomic<size_t> unfinished_;
  std::atomic<bool> finished_ = false;
};

// The finished jobs of one consumer, in the order in which they end.
class Completions {
 public:
  Completions();
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  enum class Wait { done, timeout, interrupted };

  // Waits for the next finished job, forever if `seconds` is 0. Returns `interrupted` when a signal arrived,
  // so that the caller can handle it and wait again.
  Wait wait(double seconds, std::shared_ptr<Job>& job);
  void push(std::shared_ptr<Job> job);

  // How often workers asked for what they share with the consumer while it worked, and how long they waited.
  struct Delays {
    uint64_t asked = 0, ns = 0;
  };
  // Whether the consumer waits for a job, rather than works.
  bool awaited() const { return awaited_.load(std::memory_order_relaxed); }
  void add_delay(uint64_t ns);
  // Returns the delays since the last call.
  Delays take_delays();

 private:
  std::mutex mutex_;
  std::deque<std::shared_ptr<Job>> jobs_;
  sem_t ready_;
  std::atomic<bool> awaited_ = false;
  std::atomic<uint64_t> asked_ = 0, delay_ns_ = 0;
};

class Pool {
 public:
  Pool();
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void submit(std::shared_ptr<Job> job, std::shared_ptr<Completions> completions, uint32_t number = 0);
  // Drops the jobs that were to be pushed to `completions` and are not begun; begun ones stop after the runs
  // under way.
  void cancel(const Completions* completions);
  // Works until close(). Called by each of the threads that make up the pool; `lane` gets its spans.
  void work(size_t worker, Lane* lane = nullptr);
  // Lets only the first `workers` of them take runs from here on; the others rest after their current runs.
  void limit(size_t workers);
  void close();

 private:
  struct Entry {
    std::shared_ptr<Job> job;
    std::shared_ptr<Completions> completions;
  };

  std::mutex mutex_;
  // Workers that rest wait apart from those that wait for work, so that they catch no notification for one.
  std::condition_variable *const changed_, *const called_;
  const int process_;
  std::deque<Entry> queue_;
  size_t limit_ = SIZE_MAX;
  bool closed_ = false;
};

}  // namespace foreload
