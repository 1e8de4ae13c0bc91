#include "writes.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings.hpp"

using foreload::WriteWatch;

void bind_writes(nb::module_& module) {
  nb::class_<WriteWatch>(module, "WriteWatch", "A watch over writes to all whole pages of some memory.")
      .def(
          "look",
          [](WriteWatch& watch) -> std::optional<bool> {
            const WriteWatch::Seen seen = watch.look();
            if (seen == WriteWatch::Seen::unknown) return std::nullopt;
            return seen == WriteWatch::Seen::write;
          },
          "Return whether it has been written to since the last look; None: that is not known.")
      .def_prop_ro("begin", &WriteWatch::begin)
      .def_prop_ro("end", &WriteWatch::end);
  module.def("watch_writes", &WriteWatch::of, nb::arg("address"), nb::arg("size"),
             nb::sig("def watch_writes(address: int, size: int) -> WriteWatch | None"),
             "Watch memory of this process; None: the system cannot tell who writes to it.");
}
