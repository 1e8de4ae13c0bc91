#include <nanobind/stl/string.h>

#include "bindings.hpp"
#include "jpeg.hpp"
#include "process.hpp"
#include "rows.hpp"

NB_MODULE(_native, module) {
  module.doc() = "The native core of foreload.";
  module.def(
      "simd", [] { return std::string(foreload::row_kernels().isa); },
      "The instruction set in use: 'avx512', 'avx2' or 'baseline'.");
  module.def("jpeg_library", &foreload::jpeg_library,
             "The JPEG library compiled in, e.g. 'libjpeg-turbo 2.1.5'; empty without one.");
  module.def("end_with", &foreload::end_with, nb::arg("process"), nb::arg("pipe"),
             "Ends this process, whatever it is doing, as soon as another one is gone.");
  module.def(
      "release_freed", &foreload::release_freed, nb::call_guard<nb::gil_scoped_release>(),
      "Gives the system back the memory that this process has freed, which the C library keeps for later.");
  module.def(
      "reuse_freed", &foreload::reuse_freed,
      "Lets the C library keep what is freed, some tens of MiB of each thread, for who needs memory next.");
  // An epoch that is open when the interpreter exits is no mistake of the user's.
  nb::set_leak_warnings(false);
  bind_errors(module);
  bind_order(module);
  bind_lane(module);
  bind_spans(module);
  bind_loop(module);
  bind_pool(module);
  bind_gather(module);
  bind_plan(module);
  bind_store(module);
  bind_files(module);
  bind_view(module);
  bind_image(module);
  bind_text(module);
  bind_pieces(module);
}
