// The files of a dataset, shared by its batches.
#pragma once

#include <nanobind/stl/optional.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "files.hpp"
#include "read.hpp"

// Reads in flight of one thread.
constexpr unsigned kDepth = 64;

struct FileSource {
  FileSource(std::vector<std::string> paths, size_t keep, bool direct)
      : files(std::move(paths), keep), reader(kDepth) {
    files.set_direct(direct);
  }
  FileSource(std::vector<std::string> paths, std::vector<foreload::Extent> extents,
             std::vector<foreload::Stamp> stamps, size_t keep, bool direct)
      : files(std::move(paths), std::move(extents), std::move(stamps), keep), reader(kDepth) {
    files.set_direct(direct);
  }

  // Returns the samples per run: `usual`, but `together` if many reads are in flight.
  size_t grain(size_t usual, size_t together) const { return reader.many(files) ? together : usual; }

  foreload::Files files;
  foreload::AdaptiveReader reader;
};

// Rows of (file, offset, length).
using Extents = nb::ndarray<const int64_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
// Rows of (size, nanoseconds of the last change).
using Stamps = nb::ndarray<const int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

std::vector<std::string> to_paths(const std::vector<nb::bytes>& paths);
std::vector<foreload::Extent> to_extents(const Extents& extents);
std::vector<foreload::Stamp> to_stamps(const Stamps& stamps);
nb::bytes to_bytes(std::span<const uint8_t> bytes);

template <typename Source>
void init_files(Source* source, const std::vector<nb::bytes>& paths, size_t keep,
                const std::optional<Extents>& extents, const std::optional<Stamps>& stamps, bool direct) {
  if (extents && stamps) {
    new (source) Source(to_paths(paths), to_extents(*extents), to_stamps(*stamps), keep, direct);
  } else {
    new (source) Source(to_paths(paths), keep, direct);
  }
}

// Counts negative indices from the end. Throws Error(index).
void check_samples(std::vector<int64_t>& indices, size_t count, const char* what);
