#include "spans.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <optional>

#include "bindings.hpp"

using foreload::Lane;
using foreload::Loop;
using foreload::Measure;
using foreload::Span;
using foreload::Stage;
using foreload::Total;

foreload::Stage stage_of(uint8_t number) {
  if (number >= foreload::kStages) {
    throw foreload::Error(foreload::ErrorKind::value, "there is no stage " + std::to_string(number));
  }
  return static_cast<Stage>(number);
}

namespace {

using Words = nb::ndarray<nb::numpy, uint64_t>;

Words rows(std::vector<uint64_t> words, size_t width) {
  auto* kept = new std::vector<uint64_t>(std::move(words));
  nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<std::vector<uint64_t>*>(memory); });
  return Words(kept->data(), {kept->size() / width, width}, owner);
}

Words totals(const Lane& lane) {
  std::vector<uint64_t> words;
  for (size_t stage = 0; stage < foreload::kStages; ++stage) {
    const Total total = lane.total(static_cast<Stage>(stage));
    words.insert(words.end(), {total.count, total.wall_ns, total.cpu_ns, total.samples, total.bytes});
  }
  return rows(std::move(words), 5);
}

Words recent(const Lane& lane) {
  std::vector<uint64_t> words;
  for (const Span& span : lane.recent()) {
    words.insert(words.end(), {static_cast<uint64_t>(span.stage), span.batch, span.samples, span.bytes,
                               span.begin, span.end});
  }
  return rows(std::move(words), 6);
}

// `with Measure(...)`: a span of the thread's lane.
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

// `with Work(lane)`: what the thread writes to.
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
  std::optional<foreload::Scope> scope_;
};

nb::tuple sums(const Loop& loop) {
  const Loop::Sums& sums = loop.sums();
  return nb::make_tuple(sums.epochs, sums.batches, sums.samples, sums.wait_ns, sums.loop_ns, sums.loop_cpu_ns,
                        sums.process_cpu_ns, sums.began_ns, sums.first_ns);
}

}  // namespace

void bind_spans(nb::module_& module) {
  module.def("now_ns", &foreload::now_ns, "The clock of all spans.");
  nb::class_<Lane>(module, "Lane", "Where one worker writes what it did: to the heap, or a file in memory.")
      .def(nb::init<>())
      .def(nb::init<int, size_t>(), nb::arg("file"), nb::arg("offset"))
      .def_prop_ro_static(
          "bytes", [](nb::handle) { return Lane::kBytes; }, "What a lane takes of a file.")
      .def_prop_ro_static(
          "spans", [](nb::handle) { return Lane::kSpans; }, "How many spans it keeps.")
      .def_prop_ro(
          "queued_ns", &Lane::queued_ns,
          "Nanoseconds in which worker threads of this lane were ready to run, and others had the cores.")
      .def("totals", &totals, "Per stage: spans, wall ns, cpu ns, samples, bytes.")
      .def("recent", &recent, "The last spans: stage, batch, samples, bytes, begin, end.")
      .def(
          "add",
          [](Lane& lane, uint8_t stage, uint64_t begin, uint64_t end, uint64_t samples, uint64_t bytes,
             uint32_t batch) {
            lane.add({begin, end, stage_of(stage), batch, static_cast<uint32_t>(samples), bytes},
                     {1, end - begin, 0, samples, bytes});
          },
          nb::arg("stage"), nb::arg("begin"), nb::arg("end"), nb::arg("samples") = 0, nb::arg("bytes") = 0,
          nb::arg("batch") = 0, "Writes a span that was measured elsewhere. Its writer only.")
      .def("clear", &Lane::clear);
  nb::class_<PythonMeasure>(module, "Measure", "A context: a span of the lane that the calling thread has.")
      .def(nb::init<uint8_t, uint64_t, uint64_t>(), nb::arg("stage"), nb::arg("samples") = 1,
           nb::arg("weight") = 1)
      .def("__enter__", &PythonMeasure::enter, nb::rv_policy::reference)
      .def("__exit__", &PythonMeasure::exit)
      .def_rw("bytes", &PythonMeasure::bytes)
      .def_rw("samples", &PythonMeasure::samples_);
  nb::class_<Work>(module, "Work", "A context: the calling thread writes to this lane.")
      .def(nb::init<std::shared_ptr<Lane>, uint32_t>(), nb::arg("lane"), nb::arg("batch") = 0)
      .def("__enter__", &Work::enter, nb::rv_policy::reference)
      .def("__exit__", &Work::exit);
  nb::class_<Loop>(module, "Loop", "What the consumer of batches does: it waits for them, and works on them.")
      .def(nb::init<std::shared_ptr<Lane>>(), nb::arg("lane"))
      .def("begin", &Loop::begin, "An epoch is made ready from here.")
      .def("begun", &Loop::begun, "It is ready.")
      .def("mark_requested", &Loop::mark_requested, "A batch is asked for.")
      .def("mark", &Loop::mark, "Its order is drawn from here.")
      // (Arguments without names are taken faster.)
      .def("ordered", &Loop::ordered, "ordered(samples): it is drawn.")
      .def("gathered", &Loop::gathered,
           "gathered(samples, bytes, batches): so many are gathered, which are given together.")
      .def("mark_delivered", &Loop::mark_delivered,
           "mark_delivered(samples, batches): the batch is given, or several are, which the loop takes one by one.")
      .def("take_back", &Loop::take_back, nb::arg("samples"), nb::arg("batches"),
           "Of those, so many were never taken.")
      .def("clear", &Loop::clear)
      .def_prop_ro("pays_together", &Loop::pays_together,
                   "How many batches the loop takes in a moment, which may be given together.")
      .def_prop_ro("batches", [](const Loop& loop) { return loop.sums().batches; })
      .def_prop_ro(
          "seconds",
          [](const Loop& loop) {
            return static_cast<double>(loop.sums().wait_ns + loop.sums().loop_ns) * 1e-9;
          },
          "Waited and worked.")
      .def_prop_ro(
          "sums", &sums,
          "epochs, batches, samples; nanoseconds waited, worked, worked on a core, of the process on "
          "cores; when the last epoch that gave a batch began, and how long its first one took");
}
