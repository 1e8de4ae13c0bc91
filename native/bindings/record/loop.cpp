#include "loop.hpp"

#include <nanobind/stl/shared_ptr.h>

#include <memory>

#include "bindings.hpp"

using foreload::Lane;
using foreload::Loop;

namespace {

nb::tuple sums(const Loop& loop) {
  const Loop::Sums& sums = loop.sums();
  return nb::make_tuple(sums.epochs, sums.batches, sums.samples, sums.wait_ns, sums.loop_ns, sums.loop_cpu_ns,
                        sums.process_cpu_ns, sums.began_ns, sums.first_ns);
}

}  // namespace

void bind_loop(nb::module_& module) {
  nb::class_<Loop>(module, "Loop", "The consumer's loop: how long it waits for batches and works on them.")
      .def(nb::init<std::shared_ptr<Lane>>(), nb::arg("lane"))
      .def("begin", &Loop::begin, "Mark that the set-up of an epoch begins.")
      .def("begun", &Loop::begun, "Mark that the set-up has ended.")
      .def("mark_requested", &Loop::mark_requested, "Mark that a batch is requested.")
      .def("mark", &Loop::mark, "Mark where a span begins that ordered() or gathered() ends.")
      // (Arguments without names are taken faster.)
      .def("ordered", &Loop::ordered, "ordered(samples): mark that the order of these samples is drawn.")
      .def("gathered", &Loop::gathered, "gathered(samples, bytes): mark that a batch is gathered.")
      .def("mark_delivered", &Loop::mark_delivered,
           "mark_delivered(samples): mark that a batch is delivered.")
      .def("clear", &Loop::clear, "Reset all sums, those of the lane too.")
      .def_prop_ro("batches", [](const Loop& loop) { return loop.sums().batches; })
      .def_prop_ro(
          "seconds",
          [](const Loop& loop) {
            return static_cast<double>(loop.sums().wait_ns + loop.sums().loop_ns) * 1e-9;
          },
          "The time that the loop has waited and worked.")
      .def_prop_ro(
          "sums", &sums,
          "epochs, batches, samples; nanoseconds waited, worked, worked on a core, and of the process on "
          "cores; when the last epoch that delivered a batch began, and the time to its first batch");
}
