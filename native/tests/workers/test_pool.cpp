// Every sample of every job is made once; jobs may be cancelled, workers limited and the pool closed.
#include <set>
#include <thread>
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "pool.hpp"

using foreload::Completions;
using foreload::Job;
using foreload::Pool;

namespace {

class Counting : public Job {
 public:
  Counting(size_t count, size_t grain) : Job(count, grain), made(count) {}
  void run(size_t begin, size_t end, size_t) override {
    CHECK(begin < end && end <= made.size());
    for (size_t i = begin; i < end; ++i) ++made[i];
  }
  void finish(size_t) override {
    for (const int times : made) CHECK(times == 1);
    ++finished;
  }
  std::vector<int> made;  // TSan sees whether finish() may read what other workers wrote
  int finished = 0;
};

class Seen : public Job {
 public:
  explicit Seen(size_t count) : Job(count, 1), by(count) {}
  void run(size_t begin, size_t, size_t worker) override { by[begin] = worker; }
  std::vector<size_t> by;
};

class Workers {
 public:
  explicit Workers(size_t count) {
    for (size_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { pool.work(i); });
  }
  ~Workers() {
    pool.close();
    for (auto& thread : threads_) thread.join();
  }
  Pool pool;

 private:
  std::vector<std::thread> threads_;
};

}  // namespace

int main() {
  CHECK_THROWS(Counting(0, 1), value);
  std::shared_ptr<Job> job;
  {
    Workers workers(4);
    const auto completions = std::make_shared<Completions>();
    CHECK(completions->wait(0.001, job) == Completions::Wait::timeout);
    for (int round = 0; round < 50; ++round) {
      std::set<std::shared_ptr<Job>> open;
      for (size_t i = 1; i <= 20; ++i) {
        auto counting = std::make_shared<Counting>(i * 7, i % 5 + 1);
        open.insert(counting);
        workers.pool.submit(counting, completions);
      }
      while (!open.empty()) {
        CHECK(completions->wait(30, job) == Completions::Wait::done);
        CHECK(dynamic_cast<Counting&>(*job).finished == 1);
        CHECK(open.erase(job) == 1);
      }
    }
    // What workers wait for is told once, and that the consumer waits, only while it does.
    CHECK(!completions->awaited());
    completions->add_delay(5);
    completions->add_delay(7);
    const Completions::Delays delays = completions->take_delays();
    CHECK(delays.asked == 2 && delays.ns == 12);
    CHECK(completions->take_delays().asked == 0);
    // Two consumers at once; one gives up in the middle.
    std::thread other([&] {
      const auto own = std::make_shared<Completions>();
      for (int i = 0; i < 200; ++i) workers.pool.submit(std::make_shared<Counting>(10, 1), own);
      workers.pool.cancel(own.get());
    });
    for (int i = 0; i < 200; ++i) workers.pool.submit(std::make_shared<Counting>(10, 3), completions);
    for (int i = 0; i < 200; ++i) {
      std::shared_ptr<Job> done;
      CHECK(completions->wait(0, done) == Completions::Wait::done);
    }
    other.join();
    // Closing with work left drops it.
    for (int i = 0; i < 1000; ++i) workers.pool.submit(std::make_shared<Counting>(10, 1), completions);
  }
  {
    // The number of workers changes all the time; nothing is lost, and those that rest make nothing.
    Workers workers(6);
    const auto completions = std::make_shared<Completions>();
    size_t open = 0;
    for (size_t round = 0; round < 300; ++round) {
      workers.pool.limit(round % 6 + 1);
      for (size_t i = 0; i < 3; ++i, ++open)
        workers.pool.submit(std::make_shared<Counting>(5, 1 + i * 4), completions);
      for (; open > 2; --open) CHECK(completions->wait(30, job) == Completions::Wait::done);
    }
    for (; open > 0; --open) CHECK(completions->wait(30, job) == Completions::Wait::done);
    workers.pool.limit(2);
    auto seen = std::make_shared<Seen>(64);
    workers.pool.submit(seen, completions);
    CHECK(completions->wait(30, job) == Completions::Wait::done);
    for (const size_t worker : seen->by) CHECK(worker < 2);
    workers.pool.limit(0);  // all rest, until they are called or the pool is closed
  }
  Counting here(9, 2);
  here.run_here();
  CHECK(here.finished == 1);
}
