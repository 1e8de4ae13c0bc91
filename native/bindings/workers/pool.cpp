#include "pool.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "bindings.hpp"
#include "clock.hpp"

namespace {

using foreload::Completions;
using foreload::Job;
using foreload::Lane;
using foreload::PacedMeasure;
using foreload::Pool;
using foreload::Stage;

// Takes the GIL for a worker. If its consumer works meanwhile, that is told how long this takes.
class WorkerGil {
 public:
  WorkerGil() {
    if (consumer_ != nullptr) consumer_->add_delay(foreload::now_ns() - since_);
  }

 private:
  static Completions* working_consumer() {
    Completions* const consumer = foreload::current().consumer;
    return consumer == nullptr || consumer->awaited() ? nullptr : consumer;
  }

  Completions* const consumer_ = working_consumer();
  const uint64_t since_ = foreload::now_ns();
  const AcquireGil acquire_;
};

// Samples made by Python. `run(begin, end)` and `finish()` record their own failures. Their spans are of
// `stage` and Stage::batch; waiting for the GIL is part of these, but not of their CPU time.
class PythonJob : public Job {
 public:
  PythonJob(size_t count, size_t grain, nb::callable run, nb::callable finish, std::optional<Stage> stage,
            size_t samples)
      : Job(count, grain),
        run_(std::move(run)),
        finish_(std::move(finish)),
        stage_(stage),
        samples_(samples == 0 ? count : samples),
        is_whole_(count == 1) {}
  ~PythonJob() override {
    const AcquireGil acquire;
    sleep_if_exiting([this] {
      run_.reset();
      finish_.reset();
    });
  }

  void run(size_t begin, size_t end, size_t) override {
    std::optional<PacedMeasure> measure;
    if (stage_) measure.emplace(*stage_, is_whole_ ? samples_ : end - begin);
    const WorkerGil gil;
    call([&] { run_(begin, end); });
  }
  void finish(size_t) override {
    std::optional<PacedMeasure> measure;
    if (stage_) measure.emplace(Stage::batch, samples_);
    const WorkerGil gil;
    call([&] { finish_(); });
  }

 private:
  template <typename Function>
  void call(Function function) {
    sleep_if_exiting([&] {
      try {
        function();
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("foreload worker");
      }
    });
  }

  nb::object run_, finish_;
  const std::optional<Stage> stage_;
  const size_t samples_;
  const bool is_whole_;
};

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Samples how often the GIL is held: a consumer that waits looks about every 20 ms, at random times, so that
// no rhythm of the workers can match them. It has nothing else to do, and would need the GIL next.
class LockWatch {
 public:
  size_t looks() const { return looks_; }
  size_t held() const { return held_; }
  double held_seconds() const { return static_cast<double>(held_ns_) * 1e-9; }
  size_t asked() const { return asked_; }
  double delay_seconds() const { return static_cast<double>(delay_ns_) * 1e-9; }

  // Counts what workers waited for the GIL while this consumer worked.
  void add(const Completions::Delays& delays) {
    asked_ += delays.asked;
    delay_ns_ += delays.ns;
  }

  // Returns the seconds until the next look, if a wait that begins now may last until then. Any other wait
  // needs no timer, which takes microseconds to set.
  std::optional<double> due(Clock::time_point now) const {
    const double left = seconds(next_.load() - now);
    return left < 4 * usual_ ? std::optional(std::max(1e-6, left)) : std::nullopt;
  }
  // Long waits are remembered for a while: short ones between them do not say when the next one is.
  void waited(double seconds) { usual_ = std::max(seconds, 0.97 * usual_); }

  // Called without the GIL.
  void look() {
    const Clock::time_point begin = Clock::now();
    {
      const AcquireGil acquire;
    }
    const Clock::time_point end = Clock::now();
    ++looks_;
    if (end - begin > free_within) {
      ++held_;
      held_ns_ += static_cast<uint64_t>(std::chrono::nanoseconds(end - begin).count());
    }
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    next_ = end + std::chrono::microseconds(10000 + (state_ >> 33) % 20000);
  }

 private:
  // A free GIL is taken in a microsecond, or a few if the core was asleep; one that is held, after a switch
  // of threads.
  static constexpr std::chrono::microseconds free_within{20};
  // Shared by loops over the same loader in several threads.
  std::atomic<size_t> looks_ = 0, held_ = 0, asked_ = 0;
  std::atomic<uint64_t> held_ns_ = 0, delay_ns_ = 0;
  std::atomic<uint64_t> state_ = 1;
  std::atomic<Clock::time_point> next_ = Clock::now();
  std::atomic<double> usual_ = 0;  // seconds that a wait is expected to take at most
};

// Waits for at most `limit` seconds (0: forever), and looks at the GIL meanwhile.
Completions::Wait wait_and_look(Completions& completions, double limit, std::shared_ptr<Job>& job,
                                LockWatch* watch) {
  if (watch == nullptr) return completions.wait(limit, job);
  watch->add(completions.take_delays());
  const Clock::time_point begin = Clock::now();
  Clock::time_point now = begin;
  for (;;) {
    const double left = limit > 0 ? std::max(1e-6, limit - seconds(now - begin)) : 0;
    const std::optional<double> look = watch->due(now);
    const bool looks = look && (limit == 0 || *look < left);
    const Completions::Wait outcome = completions.wait(looks ? *look : left, job);
    watch->waited(seconds(Clock::now() - begin));
    if (outcome != Completions::Wait::timeout || !looks) return outcome;
    watch->look();
    now = Clock::now();
  }
}

// An object whose last reference a worker may drop while the interpreter exits: nanobind's own deleter would
// ask for the lock where nothing may be thrown, and the process would abort (gil.hpp).
template <typename T>
std::shared_ptr<T> held(std::shared_ptr<T> object) {
  T* const pointer = object.get();
  auto* const kept = new std::shared_ptr<T>(std::move(object));
  return std::shared_ptr<T>(pointer, [kept](T*) {
    const AcquireGil acquire;
    delete kept;
  });
}

void submit(Pool& pool, std::shared_ptr<Job> job, std::shared_ptr<Completions> completions, uint32_t number) {
  pool.submit(held(std::move(job)), held(std::move(completions)), number);
}

// A signal that comes right before a wait begins, or to another thread, interrupts no wait.
constexpr double kSignalSeconds = 1.0;

nb::object wait(Completions& completions, double limit, LockWatch* watch) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    // A signal's handler, of a timer say, does not make the wait longer.
    const double left = limit > 0 ? std::max(1e-6, limit - seconds(Clock::now() - begin)) : kSignalSeconds;
    std::shared_ptr<Job> job;
    Completions::Wait outcome;
    {
      const ReleaseGil release;
      outcome = wait_and_look(completions, std::min(left, kSignalSeconds), job, watch);
    }
    if (outcome == Completions::Wait::done) return nb::cast(std::move(job));
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (outcome == Completions::Wait::timeout && limit > 0 && seconds(Clock::now() - begin) >= limit)
      return nb::none();
  }
}

}  // namespace

void bind_pool(nb::module_& module) {
  nb::class_<Job>(module, "Job", "A batch to be made.")
      .def("run_here", &Job::run_here, nb::call_guard<ReleaseGil>(), "Make all of it in the calling thread.")
      .def_prop_ro("is_finished", &Job::is_finished, "Whether workers of a pool have finished it.")
      // (Arguments without names are taken faster, here and below.)
      .def("run_in", &Job::run_in, nb::call_guard<ReleaseGil>(),
           "run_in(lane, number): the same as batch `number` of an epoch; the thread's spans are written to "
           "the "
           "lane.");
  nb::class_<PythonJob, Job>(module, "PythonJob", "A batch that Python makes.")
      .def(
          "__init__",
          [](PythonJob* job, size_t count, size_t grain, nb::callable run, nb::callable finish,
             std::optional<uint8_t> stage, size_t samples) {
            std::optional<Stage> known;
            if (stage) known = stage_of(*stage);
            new (job) PythonJob(count, grain, std::move(run), std::move(finish), known, samples);
          },
          nb::arg("count"), nb::arg("grain"), nb::arg("run"), nb::arg("finish"),
          nb::arg("stage").none() = nb::none(), nb::arg("samples") = 0);
  nb::class_<LockWatch>(module, "LockWatch",
                        "Samples how often the interpreter's lock is held while a consumer waits.")
      .def(nb::init<>())
      .def_prop_ro("looks", &LockWatch::looks, "How often the consumer has looked.")
      .def_prop_ro("held", &LockWatch::held, "How often the lock was held.")
      .def_prop_ro("held_seconds", &LockWatch::held_seconds, "How long such looks waited for it.")
      .def_prop_ro("asked", &LockWatch::asked, "How often workers asked for it while the consumer worked.")
      .def_prop_ro("delay_seconds", &LockWatch::delay_seconds, "How long they waited for it then.");
  nb::class_<Completions>(module, "Completions",
                          "The finished jobs of one consumer, in the order in which they end.")
      .def(nb::init<>())
      .def(
          "wait", &wait, nb::arg("seconds"), nb::arg("watch").none() = nb::none(),
          "Return the next finished job, or None after that many seconds (0: no limit). Signals are handled.")
      .def("push", &Completions::push, nb::arg("job"));
  nb::class_<Pool>(module, "Pool", "A pool of the threads that call work(), and their jobs.")
      .def(nb::init<>())
      .def("submit", &submit, "submit(job, completions, number): add the job of batch `number` of an epoch.")
      .def("cancel", &Pool::cancel, nb::arg("completions"), nb::call_guard<ReleaseGil>())
      .def("work", &Pool::work, nb::arg("worker"), nb::arg("lane").none() = nb::none(),
           nb::call_guard<ReleaseGil>())
      .def("limit", &Pool::limit, nb::arg("workers"), nb::call_guard<ReleaseGil>(),
           "Let only the first `workers` threads take jobs from here on.")
      .def("close", &Pool::close, nb::call_guard<ReleaseGil>());
}
