#include "lane.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"

using foreload::Lane;
using foreload::Span;
using foreload::Stage;
using foreload::Total;

Stage stage_of(uint8_t number) {
  if (number >= foreload::kStages) {
    throw foreload::Error(foreload::ErrorKind::value, "there is no stage " + std::to_string(number));
  }
  return static_cast<Stage>(number);
}

namespace {

using Table = nb::ndarray<nb::numpy, uint64_t>;

Table table_of(std::vector<uint64_t> values, size_t columns) {
  auto* kept = new std::vector<uint64_t>(std::move(values));
  nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<std::vector<uint64_t>*>(memory); });
  return Table(kept->data(), {kept->size() / columns, columns}, owner);
}

Table totals(const Lane& lane) {
  std::vector<uint64_t> values;
  for (size_t stage = 0; stage < foreload::kStages; ++stage) {
    const Total total = lane.total(static_cast<Stage>(stage));
    values.insert(values.end(), {total.count, total.wall_ns, total.cpu_ns, total.samples, total.bytes});
  }
  return table_of(std::move(values), 5);
}

Table recent(const Lane& lane) {
  std::vector<uint64_t> values;
  for (const Span& span : lane.recent()) {
    values.insert(values.end(), {static_cast<uint64_t>(span.stage), span.batch, span.samples, span.bytes,
                                 span.begin, span.end});
  }
  return table_of(std::move(values), 6);
}

using Words = nb::ndarray<const uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void absorb(Lane& lane, const Words& totals, const Words& spans, int64_t shift) {
  if (totals.shape(0) != foreload::kStages || totals.shape(1) != 5 || spans.shape(1) != 6) {
    throw foreload::Error(foreload::ErrorKind::value, "totals and spans must be those of another lane");
  }
  const uint64_t* row = totals.data();
  for (size_t stage = 0; stage < foreload::kStages; ++stage, row += 5) {
    lane.count(static_cast<Stage>(stage), {row[0], row[1], row[2], row[3], row[4]});
  }
  row = spans.data();
  for (size_t i = 0; i < spans.shape(0); ++i, row += 6) {
    lane.add({row[4] + shift, row[5] + shift, stage_of(static_cast<uint8_t>(row[0])),
              static_cast<uint32_t>(row[1]), static_cast<uint32_t>(row[2]), row[3]},
             {});
  }
}

}  // namespace

void bind_lane(nb::module_& module) {
  nb::class_<Lane>(module, "Lane", "The spans of one worker, on the heap or in a file in memory.")
      .def(nb::init<>())
      .def(nb::init<int, size_t>(), nb::arg("file"), nb::arg("offset"))
      .def_prop_ro_static(
          "bytes", [](nb::handle) { return Lane::kBytes; }, "The bytes that a lane takes in a file.")
      .def_prop_ro_static(
          "spans", [](nb::handle) { return Lane::kSpans; }, "How many spans a lane keeps.")
      .def_prop_ro(
          "queued_ns", &Lane::queued_ns,
          "Nanoseconds that worker threads of this lane were ready to run while others had the cores.")
      .def("totals", &totals, "Return per stage: spans, wall time, CPU time (nanoseconds), samples, bytes.")
      .def("recent", &recent,
           "Return the last spans, oldest first: stage, batch, samples, bytes, begin, end.")
      .def(
          "add",
          [](Lane& lane, uint8_t stage, uint64_t begin, uint64_t end, uint64_t samples, uint64_t bytes,
             uint32_t batch) {
            lane.add({begin, end, stage_of(stage), batch, static_cast<uint32_t>(samples), bytes},
                     {1, end - begin, 0, samples, bytes});
          },
          nb::arg("stage"), nb::arg("begin"), nb::arg("end"), nb::arg("samples") = 0, nb::arg("bytes") = 0,
          nb::arg("batch") = 0, "Add a span that was measured elsewhere. For the lane's writer only.")
      .def(
          "absorb", &absorb, nb::arg("totals"), nb::arg("spans"), nb::arg("shift") = 0,
          "Add what another lane has recorded, with its spans moved by ``shift`` nanoseconds. For the lane's "
          "writer only.")
      .def("clear", &Lane::clear, "Reset the sums and forget the spans.");
}
