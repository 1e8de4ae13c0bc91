#include <nanobind/stl/string.h>

#include "bindings.hpp"
#include "jpeg.hpp"
#include "process.hpp"
#include "rows.hpp"

NB_MODULE(_native, module) {
  module.doc() = "The native core of foreload.";
  module.def(
      "simd", [] { return std::string(foreload::row_kernels().isa); },
      "Return the instruction set in use: 'avx512', 'avx2' or 'baseline'.");
  module.def("jpeg_library", &foreload::jpeg_library,
             "Return the JPEG library compiled in, e.g. 'libjpeg-turbo 2.1.5'; empty without one.");
  module.def("end_with", &foreload::end_with, nb::arg("process"), nb::arg("pipe"),
             "End this process, whatever it is doing, as soon as another one has ended.");
  module.def("widen_signal_stack", &foreload::widen_signal_stack,
             "Give this thread a signal stack with room for the handlers of all signals at once.");
  module.def(
      "release_freed", &foreload::release_freed, nb::call_guard<ReleaseGil>(),
      "Return memory that this process has freed to the system; the C library would keep it for later.");
  module.def(
      "reuse_freed", &foreload::reuse_freed,
      "Make the C library keep what is freed, some tens of MiB of each thread, for the next allocation.");
  // It is no error if an epoch is still open when the interpreter exits.
  nb::set_leak_warnings(false);
  bind_errors(module);
  bind_order(module);
  bind_lane(module);
  bind_spans(module);
  bind_loop(module);
  bind_pool(module);
  bind_gather(module);
  bind_tensors(module);
  bind_plan(module);
  bind_store(module);
  bind_files(module);
  bind_view(module);
  bind_image(module);
  bind_small(module);
  bind_tar(module);
  bind_members(module);
  bind_text(module);
  bind_pieces(module);
  bind_packing(module);
  bind_twisters(module);
  bind_audit(module);
  bind_references(module);
  bind_writes(module);
}
