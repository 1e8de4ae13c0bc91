#include "gather.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <vector>

#include "bindings.hpp"
#include "pool.hpp"

namespace {

// Bytes that are copied sooner than another thread takes the lock and gives it back.
constexpr size_t kShort = 1 << 18;

using foreload::Measure;
using foreload::Stage;

using Rows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_shapes(const Rows& source, size_t count, const OutRows& out) {
  if (out.shape(0) != count || out.shape(1) != source.shape(1)) {
    throw foreload::Error(foreload::ErrorKind::value,
                          "out must have one row per index, of the source's width");
  }
}

// A batch of rows of several sources.
class GatherJob : public foreload::Job {
 public:
  GatherJob(std::vector<Rows> sources, const Indices& indices, std::vector<OutRows> outs, size_t grain)
      : Job(indices.shape(0), grain),
        sources_(std::move(sources)),
        outs_(std::move(outs)),
        indices_(indices.data(), indices.data() + indices.shape(0)) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      check_shapes(sources_[i], indices_.size(), outs_.at(i));
      foreload::check_indices(indices_.data(), indices_.size(), static_cast<int64_t>(sources_[i].shape(0)));
    }
  }
  ~GatherJob() override {
    const AcquireGil acquire;
    sources_.clear();
    outs_.clear();
  }

  void run(size_t begin, size_t end, size_t) override {
    Measure measure(Stage::batch, end - begin);
    for (size_t i = 0; i < sources_.size(); ++i) {
      const size_t width = sources_[i].shape(1);
      measure.add_bytes((end - begin) * width);
      foreload::gather(sources_[i].data(), static_cast<int64_t>(sources_[i].shape(0)), width,
                       indices_.data() + begin, end - begin, outs_[i].data() + begin * width);
    }
  }

 private:
  std::vector<Rows> sources_;
  std::vector<OutRows> outs_;
  std::vector<int64_t> indices_;
};

// The rows of several sources of one length, copied while the calling thread waits.
class RowSources {
 public:
  RowSources(int64_t rows, std::vector<std::pair<uintptr_t, size_t>> sources)
      : rows_(rows), sources_(std::move(sources)) {}

  void gather(const Indices& indices, const std::vector<uintptr_t>& outs, size_t threads) const {
    const size_t count = indices.shape(0);
    const ReleaseGil release;
    foreload::check_indices(indices.data(), count, rows_);
    for (size_t i = 0; i < sources_.size(); ++i) {
      const auto& [address, width] = sources_[i];
      foreload::gather_by(threads, reinterpret_cast<const void*>(address), rows_, width, indices.data(),
                          count, reinterpret_cast<void*>(outs.at(i)));
    }
  }

 private:
  int64_t rows_;
  std::vector<std::pair<uintptr_t, size_t>> sources_;  // address, bytes per row
};

}  // namespace

void bind_gather(nb::module_& module) {
  module.def(
      "gather",
      [](const Rows& source, const Indices& indices, const OutRows& out) {
        check_shapes(source, indices.shape(0), out);
        const auto rows = static_cast<int64_t>(source.shape(0));
        const ReleaseGil release;
        foreload::check_indices(indices.data(), indices.shape(0), rows);
        foreload::gather(source.data(), rows, source.shape(1), indices.data(), indices.shape(0), out.data());
      },
      nb::arg("source"), nb::arg("indices"), nb::arg("out").noconvert(),
      "Copy rows: out[i] = source[indices[i]], for two-dimensional arrays of bytes.");
  module.def(
      "gather_from",
      [](const Indices& addresses, const OutRows& out) {
        if (out.shape(0) != addresses.shape(0)) {
          throw foreload::Error(foreload::ErrorKind::value, "out must have one row per address");
        }
        std::optional<ReleaseGil> release;
        if (out.size() > kShort) release.emplace();
        foreload::gather_from(1, addresses.data(), out.shape(1), addresses.shape(0), out.data());
      },
      nb::arg("addresses"), nb::arg("out").noconvert(),
      "Copy rows: out[i] = the bytes at addresses[i], which the caller keeps.");
  module.def(
      "copy_rows",
      [](const Indices& addresses, size_t row_bytes, uintptr_t out, size_t threads) {
        const ReleaseGil release;
        foreload::gather_from(threads, addresses.data(), row_bytes, addresses.shape(0),
                              reinterpret_cast<void*>(out));
      },
      nb::arg("addresses"), nb::arg("row_bytes"), nb::arg("out"), nb::arg("threads"),
      "Copy rows to an address, where there must be room; large batches by up to so many threads.");
  nb::class_<RowSources>(
      module, "RowSources",
      "Arrays of so many rows each, given by address and bytes per row, which the caller keeps.")
      .def(nb::init<int64_t, std::vector<std::pair<uintptr_t, size_t>>>(), nb::arg("rows"),
           nb::arg("sources"))
      .def("gather", &RowSources::gather, nb::arg("indices"), nb::arg("outs"), nb::arg("threads") = 1,
           "Copy the rows to these addresses, one for each source, which must have room; large batches by up "
           "to "
           "so many threads.");
  nb::class_<GatherJob, foreload::Job>(module, "GatherJob", "A batch of rows of tensors.")
      .def(nb::init<std::vector<Rows>, const Indices&, std::vector<OutRows>, size_t>(), nb::arg("sources"),
           nb::arg("indices"), nb::arg("outs"), nb::arg("grain"));
}
