#include "files.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "failures.hpp"
#include "file_source.hpp"
#include "pool.hpp"

using foreload::Error;
using foreload::ErrorKind;

namespace {

// Reads samples, each to its place in a batch.
class ReadJob : public foreload::Job {
 public:
  ReadJob(std::shared_ptr<FileSource> source, const Indices& indices, const Indices& starts, Bytes out)
      : Job(indices.shape(0), source->grain(kRun, 2 * kDepth)),
        source_(std::move(source)),
        indices_(indices.data(), indices.data() + indices.shape(0)),
        starts_(starts.data(), starts.data() + starts.shape(0)),
        out_(std::move(out)) {
    check_samples(indices_, source_->files.size(), "samples");
    if (starts_.size() != indices_.size() + 1 || !std::is_sorted(starts_.begin(), starts_.end()) ||
        starts_.front() != 0 || static_cast<size_t>(starts_.back()) > out_.shape(0)) {
      throw Error(ErrorKind::value, "starts must rise from 0 to the size of out, one more than indices");
    }
  }
  ~ReadJob() override {
    const AcquireGil acquire;
    out_ = Bytes();
  }

  void run(size_t begin, size_t end, size_t) override {
    std::vector<size_t> samples(indices_.begin() + static_cast<ptrdiff_t>(begin),
                                indices_.begin() + static_cast<ptrdiff_t>(end));
    std::vector<foreload::Place> places;
    for (size_t i = begin; i < end; ++i) {
      places.push_back({out_.data() + starts_[i], static_cast<uint64_t>(starts_[i + 1] - starts_[i])});
    }
    const auto done = [&](size_t k, std::span<const uint8_t> bytes, std::exception_ptr error) {
      const size_t i = begin + k;
      const auto length = static_cast<size_t>(starts_[i + 1] - starts_[i]);
      if (!error && bytes.size() != length) {
        error = std::make_exception_ptr(Error(ErrorKind::decode,
                                              "the file has " + std::to_string(bytes.size()) +
                                                  " bytes, and had " + std::to_string(length) +
                                                  " when the dataset was opened; open it again",
                                              source_->files.path(samples[k])));
      }
      if (error) {
        failures_.add(i, error);
        return;
      }
      if (bytes.data() != places[k].memory) std::copy(bytes.begin(), bytes.end(), places[k].memory);
    };
    for (const auto& [k, error] : source_->reader.read(source_->files, samples, places, done)) {
      failures_.add(begin + k, error);
    }
  }

  std::vector<std::pair<size_t, nb::object>> failures() { return failures_.take(); }

 private:
  static constexpr size_t kRun = 32;

  std::shared_ptr<FileSource> source_;
  std::vector<int64_t> indices_, starts_;
  Bytes out_;
  Failures failures_;
};

void check_sample(const FileSource& source, size_t index) {
  if (index >= source.files.size()) {
    throw Error(ErrorKind::index, "index " + std::to_string(index) + " is out of range for " +
                                      std::to_string(source.files.size()) + " samples");
  }
}

// Calls use(bytes) without the GIL.
template <typename Use>
void read_one(FileSource& source, size_t index, const Use& use) {
  check_sample(source, index);
  std::exception_ptr failure;
  {
    const ReleaseGil release;
    const auto done = [&](size_t, std::span<const uint8_t> bytes, std::exception_ptr error) {
      failure = error;
      use(bytes);
    };
    for (const auto& late : source.reader.read(source.files, std::span(&index, 1), {}, done)) {
      failure = late.second;
    }
  }
  if (failure) std::rethrow_exception(failure);
}

nb::bytes read_bytes(FileSource& source, size_t index) {
  std::vector<uint8_t> copy;
  read_one(source, index, [&](std::span<const uint8_t> bytes) { copy.assign(bytes.begin(), bytes.end()); });
  return to_bytes(copy);
}

size_t keep(FileSource& source, size_t index) {
  size_t size = 0;
  read_one(source, index, [&](std::span<const uint8_t> bytes) { size = bytes.size(); });
  return size;
}

nb::bytes path_of(const FileSource& source, size_t index) {
  check_sample(source, index);
  const std::string& path = source.files.path(index);
  return nb::bytes(path.data(), path.size());
}

std::optional<std::pair<nb::bytes, std::string>> direct_problem(const FileSource& source) {
  std::optional<std::pair<std::string, std::string>> found;
  {
    const ReleaseGil release;
    found = source.files.direct_problem();
  }
  if (!found) return std::nullopt;
  return std::pair(nb::bytes(found->first.data(), found->first.size()), std::move(found->second));
}

}  // namespace

std::vector<std::string> to_paths(const std::vector<nb::bytes>& paths) {
  std::vector<std::string> copies;
  copies.reserve(paths.size());
  for (const nb::bytes& path : paths) copies.emplace_back(path.c_str(), path.size());
  return copies;
}

std::vector<foreload::Extent> to_extents(const Extents& extents) {
  std::vector<foreload::Extent> copies;
  copies.reserve(extents.shape(0));
  for (size_t i = 0; i < extents.shape(0); ++i) {
    copies.push_back({static_cast<uint32_t>(extents(i, 0)), static_cast<uint64_t>(extents(i, 1)),
                      static_cast<uint64_t>(extents(i, 2))});
  }
  return copies;
}

std::vector<foreload::Stamp> to_stamps(const Stamps& stamps) {
  std::vector<foreload::Stamp> copies;
  for (size_t i = 0; i < stamps.shape(0); ++i) copies.push_back({stamps(i, 0), stamps(i, 1)});
  return copies;
}

nb::bytes to_bytes(std::span<const uint8_t> bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void check_samples(std::vector<int64_t>& indices, size_t count, const char* what) {
  const auto end = static_cast<int64_t>(count);
  for (int64_t& index : indices) {
    if (index < -end || index >= end) {
      throw Error(ErrorKind::index, "index " + std::to_string(index) + " is out of range for " +
                                        std::to_string(end) + " " + what);
    }
    if (index < 0) index += end;
  }
}

void bind_files(nb::module_& module) {
  nb::class_<FileSource>(module, "Files", "The files that samples lie in: a file each, or extents of shards.")
      .def("__init__", &init_files<FileSource>, nb::arg("paths"), nb::arg("keep") = 0,
           nb::arg("extents").none() = nb::none(), nb::arg("stamps").none() = nb::none(),
           nb::arg("direct") = false)
      .def("__len__", [](const FileSource& source) { return source.files.size(); })
      .def("path", &path_of, nb::arg("index"), "Return the file that a sample lies in.")
      .def("keep", &keep, nb::arg("index"),
           "Read a sample, which stays in memory if it is one of those to keep, and return its size.")
      .def("read", &read_bytes, nb::arg("index"), "Return the bytes of a sample.")
      .def(
          "expect_cold", [](FileSource& source) { source.files.expect_cold(); },
          "Read as if all reads had to wait for the disk lately.")
      .def_prop_rw(
          "direct", [](const FileSource& source) { return source.files.direct(); },
          [](FileSource& source, bool direct) { source.files.set_direct(direct); },
          "Whether reads go past the page cache, where the file system can.")
      .def("direct_problem", &direct_problem,
           "Return a file that is read through the page cache all the same, and why; None if there is none.")
      .def_prop_ro(
          "cold", [](const FileSource& source) { return source.files.cold(); },
          "Whether reads have lately had to wait for the disk.");
  nb::class_<ReadJob, foreload::Job>(module, "ReadJob", "A batch of samples' bytes, each read to its place.")
      .def(nb::init<std::shared_ptr<FileSource>, const Indices&, const Indices&, Bytes>(), nb::arg("files"),
           nb::arg("indices"), nb::arg("starts"), nb::arg("out"))
      .def("failures", &ReadJob::failures,
           "Return the samples that failed: (position, exception), in order.");
}
