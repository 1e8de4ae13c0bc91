#include "order.hpp"

#include "bindings.hpp"
#include "fisher_yates.hpp"
#include "route.hpp"

namespace {

using Draws = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void permute(uint64_t n, uint64_t seed, uint32_t epoch, uint64_t start, const Int64s& out, uint64_t stride) {
  const ReleaseGil release;
  foreload::Permutation(n, {seed, epoch}).fill(start, out.shape(0), out.data(), stride);
}

void positions(uint64_t n, uint64_t seed, uint32_t epoch, const Indices& values, const Int64s& out) {
  check_length(out.shape(0), values.shape(0), "out");
  const ReleaseGil release;
  foreload::Permutation(n, {seed, epoch}).find(values.data(), values.shape(0), out.data());
}

void route(const Indices& positions, const Indices& lengths, const Int64s& out) {
  check_length(out.shape(0), positions.shape(0), "out");
  const ReleaseGil release;
  foreload::route(positions.data(), positions.shape(0), lengths.data(), lengths.shape(0), out.data());
}

// The GIL is held: this moves references, a few nanoseconds each.
nb::list exchange(nb::list held, const nb::list& more, const Draws& draws) {
  const size_t others = held.size();
  if (more.size() != draws.shape(0)) {
    throw foreload::Error(foreload::ErrorKind::value, "more and draws must have as many entries");
  }
  nb::list drawn;
  for (size_t i = 0; i < more.size(); ++i) {
    const auto at = static_cast<size_t>(draws(i) % (others + 1));
    nb::object one = more[i];
    if (at < others) {
      nb::object out = held[at];
      held[at] = one;
      one = std::move(out);
    }
    drawn.append(one);
  }
  return drawn;
}

}  // namespace

void bind_order(nb::module_& module) {
  module.def("permute", &permute, nb::arg("n"), nb::arg("seed"), nb::arg("epoch"), nb::arg("start"),
             nb::arg("out"), nb::arg("stride") = 1,
             "Write a part of the permutation of range(n) that (seed, epoch) names: every `stride`-th of its "
             "positions from `start` on.");
  module.def("positions", &positions, nb::arg("n"), nb::arg("seed"), nb::arg("epoch"), nb::arg("values"),
             nb::arg("out"), "Write the positions of values in that permutation.");
  module.def("route", &route, nb::arg("positions"), nb::arg("lengths"), nb::arg("out"),
             "Write which of the samples at these positions of a router, rank by rank, each rank loads: "
             "indices, rank by rank.");
  module.def("exchange", &exchange, nb::arg("held"), nb::arg("more"), nb::arg("draws"),
             "Put each of `more` at the end of `held` and take one out: the one at this draw modulo their "
             "count, whose place the last one takes. Return what was taken out.");
  nb::class_<foreload::FisherYates>(module, "FisherYates",
                                    "The permutations that torch.randperm draws, in pieces.")
      .def(nb::init<uint64_t, uint64_t>(), nb::arg("n"), nb::arg("seed"))
      .def(
          "fill",
          [](foreload::FisherYates& self, const Int64s& out) {
            const ReleaseGil release;
            self.fill(out.data(), out.shape(0));
          },
          nb::arg("out"),
          "Write the next numbers; after the last one of a permutation of range(n), another one begins.")
      .def_ro_static("end", &foreload::FisherYates::kEnd, "The first n that torch shuffles in another way.");
}
