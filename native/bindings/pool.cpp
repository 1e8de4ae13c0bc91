#include "pool.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "bindings.hpp"

namespace {

using foreload::Completions;
using foreload::Job;
using foreload::Pool;

// Samples made by Python. `run(begin, end)` and `finish()` record their own failures.
class PythonJob : public Job {
 public:
  PythonJob(size_t count, size_t grain, nb::callable run, nb::callable finish)
      : Job(count, grain), run_(std::move(run)), finish_(std::move(finish)) {}
  ~PythonJob() override {
    const nb::gil_scoped_acquire acquire;
    run_.reset();
    finish_.reset();
  }

  void run(size_t begin, size_t end, size_t) override {
    const nb::gil_scoped_acquire acquire;
    call([&] { run_(begin, end); });
  }
  void finish(size_t) override {
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
      .def("run_here", &Job::run_here, nb::call_guard<nb::gil_scoped_release>(),
           "Makes all of it in the calling thread.");
  nb::class_<PythonJob, Job>(module, "PythonJob", "A batch that Python makes.")
      .def(nb::init<size_t, size_t, nb::callable, nb::callable>(), nb::arg("count"), nb::arg("grain"),
           nb::arg("run"), nb::arg("finish"));
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
      .def("work", &Pool::work, nb::arg("worker"), nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Pool::close, nb::call_guard<nb::gil_scoped_release>());
}
