#include "twisters.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bindings.hpp"

using foreload::Key;
using foreload::Twisters;

void bind_twisters(nb::module_& module) {
  module.def(
      "fill_twister",
      [](uint64_t seed, uint32_t epoch, uint64_t index, uint32_t which,
         nb::ndarray<uint32_t, nb::shape<foreload::kTwisterWords>, nb::c_contig, nb::device::cpu> out) {
        foreload::fill_twister({seed, epoch}, index, which, out.data());
      },
      nb::arg("seed"), nb::arg("epoch"), nb::arg("index"), nb::arg("which"), nb::arg("out"),
      "Write the state (624 words) of Mersenne Twister number `which` for a sample.");
  // The calls below take less than a microsecond, and the generators are guarded by the GIL.
  nb::class_<Twisters>(module, "Twisters", "Mersenne Twisters of other libraries, in place.")
      .def(
          "__init__",
          [](Twisters* self, const std::vector<std::tuple<uintptr_t, nb::bytes, std::ptrdiff_t>>& parts) {
            std::vector<foreload::TwisterMemory> memory;
            for (const auto& [address, keyed, words] : parts) {
              const auto* bytes = reinterpret_cast<const std::byte*>(keyed.c_str());
              memory.push_back({reinterpret_cast<std::byte*>(address), {bytes, bytes + keyed.size()}, words});
            }
            new (self) Twisters(std::move(memory));
          },
          nb::arg("parts"),
          "`parts`: (address, content in a keyed generator, offset of its 624 words or -1) of each piece of "
          "memory.")
      .def("save", &Twisters::save, "Save all states.")
      .def("changed", &Twisters::changed, "Whether a generator has drawn since save() or key().")
      .def("restore", &Twisters::restore, "Put back what was saved.")
      .def("exchange", &Twisters::exchange, nb::arg("other"),
           "Exchange the states with those of other generators.")
      .def(
          "key",
          [](Twisters& self, uint64_t seed, uint32_t epoch, uint64_t index) {
            self.key({seed, epoch}, index);
          },
          nb::arg("seed"), nb::arg("epoch"), nb::arg("index"), "Give each generator the state of a sample.");
}
