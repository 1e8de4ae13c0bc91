#include "order.hpp"

#include "bindings.hpp"

void bind_order(nb::module_& module) {
  module.def(
      "permute",
      [](uint64_t n, uint64_t seed, uint32_t epoch, uint64_t start,
         nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
        int64_t* const to = out.data();
        const size_t count = out.shape(0);
        const ReleaseGil release;
        foreload::Permutation(n, {seed, epoch}).fill(start, count, to);
      },
      nb::arg("n"), nb::arg("seed"), nb::arg("epoch"), nb::arg("start"), nb::arg("out"),
      "Write a part of the permutation of range(n) that (seed, epoch) names: its positions from `start` on.");
}
