#include "spans.hpp"

#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings.hpp"
#include "clock.hpp"

using foreload::Lane;
using foreload::Measure;
using foreload::Stage;

namespace {

// `with Measure(...)` measures a span.
class PythonMeasure {
 public:
  PythonMeasure(uint8_t stage, uint64_t samples, uint64_t weight)
      : stage_(stage_of(stage)), samples_(samples), weight_(weight) {}

  PythonMeasure& enter() {
    measure_.emplace(stage_, samples_, weight_);
    return *this;
  }
  void exit(nb::args) {
    if (measure_) measure_->add_bytes(bytes);
    if (measure_) measure_->set_samples(samples_);
    measure_.reset();
  }

  uint64_t bytes = 0;

 private:
  friend void ::bind_spans(nb::module_&);
  const Stage stage_;
  uint64_t samples_;
  const uint64_t weight_;
  std::optional<Measure> measure_;
};

// `with Work(lane)` sets the thread's lane.
class Work {
 public:
  Work(std::shared_ptr<Lane> lane, uint32_t batch) : lane_(std::move(lane)), batch_(batch) {}

  Work& enter() {
    scope_.emplace(lane_.get(), batch_);
    return *this;
  }
  void exit(nb::args) { scope_.reset(); }

 private:
  std::shared_ptr<Lane> lane_;
  const uint32_t batch_;
  std::optional<foreload::LaneScope> scope_;
};

}  // namespace

void bind_spans(nb::module_& module) {
  module.def("now_ns", &foreload::now_ns, "Return the time on the clock of all spans, in nanoseconds.");
  nb::class_<PythonMeasure>(module, "Measure",
                            "A context that measures a span, if the calling thread has a lane.")
      .def(nb::init<uint8_t, uint64_t, uint64_t>(), nb::arg("stage"), nb::arg("samples") = 1,
           nb::arg("weight") = 1)
      .def("__enter__", &PythonMeasure::enter, nb::rv_policy::reference)
      .def("__exit__", &PythonMeasure::exit)
      .def_rw("bytes", &PythonMeasure::bytes)
      .def_rw("samples", &PythonMeasure::samples_);
  nb::class_<Work>(module, "Work", "A context in which the calling thread writes its spans to this lane.")
      .def(nb::init<std::shared_ptr<Lane>, uint32_t>(), nb::arg("lane"), nb::arg("batch") = 0)
      .def("__enter__", &Work::enter, nb::rv_policy::reference)
      .def("__exit__", &Work::exit);
}
