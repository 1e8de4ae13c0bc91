#include "pool.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <optional>

#include "bindings.hpp"

namespace {

using foreload::Completions;
using foreload::Glance;
using foreload::Job;
using foreload::Lane;
using foreload::Pool;
using foreload::Stage;

// Samples made by Python. `run(begin, end)` and `finish()` record their own failures. What they do is `stage`
// and Stage::batch; waiting for the GIL is part of that, but not of its time on a core.
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
    const nb::gil_scoped_acquire acquire;
    run_.reset();
    finish_.reset();
  }

  void run(size_t begin, size_t end, size_t) override {
    std::optional<Glance> glance;
    if (stage_) glance.emplace(*stage_, is_whole_ ? samples_ : end - begin);
    const nb::gil_scoped_acquire acquire;
    call([&] { run_(begin, end); });
  }
  void finish(size_t) override {
    std::optional<Glance> glance;
    if (stage_) glance.emplace(Stage::batch, samples_);
    const nb::gil_scoped_acquire acquire;
    call([&] { finish_(); });
  }

 private:
  template <typename Function>
  void call(Function function) {
    try {
      function();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("foreload worker");
    }
  }

  nb::object run_, finish_;
  const std::optional<Stage> stage_;
  const size_t samples_;
  const bool is_whole_;
};

nb::object wait(Completions& completions, double seconds) {
  for (;;) {
    std::shared_ptr<Job> job;
    Completions::Wait outcome;
    {
      const nb::gil_scoped_release release;
      outcome = completions.wait(seconds, job);
    }
    if (outcome == Completions::Wait::done) return nb::cast(std::move(job));
    if (outcome == Completions::Wait::timeout) return nb::none();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace

void bind_pool(nb::module_& module) {
  nb::class_<Job>(module, "Job", "A batch in the making.")
      .def(
          "run_here", [](Job& job) { job.run_here(); }, nb::call_guard<nb::gil_scoped_release>(),
          "Makes all of it in the calling thread.")
      .def(
          "run_here", [](Job& job, Lane& lane, uint32_t number) { job.run_here(&lane, number); },
          nb::arg("lane"), nb::arg("number"), nb::call_guard<nb::gil_scoped_release>(),
          "The same as that batch of an epoch; the thread writes what it did to its lane.")
      .def("set_number", &Job::set_number, nb::arg("number"), "Says which batch of the epoch it is.");
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
  nb::class_<Completions>(module, "Completions",
                          "Where finished jobs arrive, in the order in which they end.")
      .def(nb::init<>())
      .def("wait", &wait, nb::arg("seconds"),
           "The next finished job, or None after that many seconds (0: no limit). Signals are handled.")
      .def("push", &Completions::push, nb::arg("job"));
  nb::class_<Pool>(module, "Pool", "Jobs, and the threads that call work().")
      .def(nb::init<>())
      .def("submit", &Pool::submit, nb::arg("job"), nb::arg("completions"))
      .def("cancel", &Pool::cancel, nb::arg("completions"), nb::call_guard<nb::gil_scoped_release>())
      .def("work", &Pool::work, nb::arg("worker"), nb::arg("lane").none() = nb::none(),
           nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Pool::close, nb::call_guard<nb::gil_scoped_release>());
}
