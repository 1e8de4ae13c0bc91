#include "plan.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <map>
#include <optional>
#include <string>

#include "bindings.hpp"

namespace {

using Costs = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

foreload::Policy policy_named(const std::string& name) {
  static const std::map<std::string, foreload::Policy> policies = {{"opt", foreload::Policy::opt},
                                                                   {"lru", foreload::Policy::lru},
                                                                   {"fifo", foreload::Policy::fifo},
                                                                   {"lfu", foreload::Policy::lfu},
                                                                   {"random", foreload::Policy::random}};
  return policies.at(name);
}

void compile(const Indices& accesses, size_t samples, const std::optional<Indices>& sizes,
             const std::optional<Costs>& costs, const std::optional<ConstBytes>& resident,
             const std::string& policy, int64_t budget, bool tail, uint64_t seed, const Bytes& hits,
             const Bytes& keep, const Bytes& retained) {
  foreload::Trace trace{accesses.data(), accesses.shape(0), samples};
  if (sizes) check_length(sizes->shape(0), samples, "sizes"), trace.sizes = sizes->data();
  if (costs) check_length(costs->shape(0), samples, "costs"), trace.costs = costs->data();
  if (resident) check_length(resident->shape(0), samples, "resident"), trace.resident = resident->data();
  check_length(hits.shape(0), trace.count, "hits");
  check_length(keep.shape(0), trace.count, "keep");
  check_length(retained.shape(0), samples, "retained");
  const foreload::Plan plan{hits.data(), keep.data(), retained.data()};
  const foreload::Policy compiler = policy_named(policy);
  const ReleaseGil release;
  foreload::compile(trace, compiler, budget, tail, seed, plan);
}

}  // namespace

void bind_plan(nb::module_& module) {
  module.def("compile_plan", &compile, nb::arg("accesses"), nb::arg("samples"), nb::arg("sizes").none(),
             nb::arg("costs").none(), nb::arg("resident").none(), nb::arg("policy"), nb::arg("budget"),
             nb::arg("tail"), nb::arg("seed"), nb::arg("hits"), nb::arg("keep"), nb::arg("retained"),
             "Compile a policy to hits and keep, a bool per access, and retained, a bool per sample.");
}
