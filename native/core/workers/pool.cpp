#include "pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <utility>

#include "error.hpp"

namespace foreload {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongestWait = 1e9;  // seconds

// Waits as sem_wait() does, but not for longer. Semaphores go by the time of day, which may be set meanwhile.
int wait_at_most(sem_t& semaphore, double seconds) {
  using std::chrono::nanoseconds;
  constexpr long kSecond = 1'000'000'000;
  const std::chrono::duration<double> longest(std::min(seconds, kLongestWait));
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(longest);
  for (;;) {
    timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    const long left = std::max(nanoseconds(0), nanoseconds(end - Clock::now())).count() + deadline.tv_nsec;
    deadline.tv_sec += left / kSecond;
    deadline.tv_nsec = left % kSecond;
    if (sem_timedwait(&semaphore, &deadline) == 0) return 0;
    if (errno != ETIMEDOUT) return -1;
    if (Clock::now() >= end) {
      errno = ETIMEDOUT;
      return -1;
    }
  }
}

}  // namespace

Job::Job(size_t count, size_t grain) : count_(count), grain_(grain), unfinished_(count) {
  if (count == 0 || grain == 0) throw Error(ErrorKind::value, "a job needs at least one sample per run");
}

void Job::run_here() {
  run(0, count_, 0);
  finish(0);
}

void Job::run_in(Lane& lane, uint32_t number) {
  const LaneScope scope(&lane, number);
  run_here();
}

Completions::Completions() {
  sem_init(&ready_, 0, 0);
}
Completions::~Completions() {
  sem_destroy(&ready_);
}

void Completions::push(std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  sem_post(&ready_);
}

void Completions::add_delay(uint64_t ns) {
  asked_.fetch_add(1, std::memory_order_relaxed);
  delay_ns_.fetch_add(ns, std::memory_order_relaxed);
}

Completions::Delays Completions::take_delays() {
  return {asked_.exchange(0, std::memory_order_relaxed), delay_ns_.exchange(0, std::memory_order_relaxed)};
}

Completions::Wait Completions::wait(double seconds, std::shared_ptr<Job>& job) {
  struct Awaited {
    explicit Awaited(std::atomic<bool>& flag) : flag(flag) { flag.store(true, std::memory_order_relaxed); }
    ~Awaited() { flag.store(false, std::memory_order_relaxed); }
    std::atomic<bool>& flag;
  } const awaited(awaited_);
  const int failed = seconds > 0 ? wait_at_most(ready_, seconds) : sem_wait(&ready_);
  if (failed != 0) return errno == ETIMEDOUT ? Wait::timeout : Wait::interrupted;
  const std::lock_guard lock(mutex_);
  job = std::move(jobs_.front());
  jobs_.pop_front();
  return Wait::done;
}

Pool::Pool()
    : changed_(new std::condition_variable), called_(new std::condition_variable), process_(getpid()) {}

Pool::~Pool() {
  // In a fork, threads that exist in the parent only still count as waiting, and the destructors of condition
  // variables would wait for them.
  if (getpid() != process_) return;
  delete changed_;
  delete called_;
}

void Pool::submit(std::shared_ptr<Job> job, std::shared_ptr<Completions> completions, uint32_t number) {
  const size_t runs = (job->count_ + job->grain_ - 1) / job->grain_;
  {
    const std::lock_guard lock(mutex_);
    job->number_ = number;
    queue_.push_back({std::move(job), std::move(completions)});
  }
  runs > 1 ? changed_->notify_all() : changed_->notify_one();
}

void Pool::cancel(const Completions* completions) {
  // Jobs are destroyed outside the lock: what they own may be slow to destroy.
  std::deque<Entry> dropped;
  const std::lock_guard lock(mutex_);
  std::deque<Entry> kept;
  for (Entry& entry : queue_)
    (entry.completions.get() == completions ? dropped : kept).push_back(std::move(entry));
  queue_.swap(kept);
}

void Pool::work(size_t worker, Lane* lane) {
  const WorkerScope worker_scope(lane);
  std::unique_lock lock(mutex_);
  for (;;) {
    called_->wait(lock, [&] { return closed_ || worker < limit_; });
    changed_->wait(lock, [&] { return closed_ || worker >= limit_ || !queue_.empty(); });
    if (closed_) return;
    if (worker >= limit_) continue;
    Entry entry = queue_.front();
    Job& job = *entry.job;
    const size_t begin = job.claimed_;
    const size_t end = job.count_ - begin > job.grain_ ? begin + job.grain_ : job.count_;
    job.claimed_ = end;
    if (end == job.count_) queue_.pop_front();
    lock.unlock();
    const LaneScope scope(lane, job.number_, entry.completions.get());
    job.run(begin, end, worker);
    if (job.unfinished_.fetch_sub(end - begin, std::memory_order_acq_rel) == end - begin) {
      job.finish(worker);
      job.finished_.store(true, std::memory_order_release);
      entry.completions->push(std::move(entry.job));
    }
    entry = {};
    lock.lock();
  }
}

void Pool::limit(size_t workers) {
  {
    const std::lock_guard lock(mutex_);
    limit_ = workers;
  }
  changed_->notify_all();
  called_->notify_all();
}

void Pool::close() {
  std::deque<Entry> dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(queue_);
  }
  changed_->notify_all();
  called_->notify_all();
}

}  // namespace foreload
