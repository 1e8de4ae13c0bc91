#include "files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>

#include "error.hpp"
#include "path.hpp"
#include "read.hpp"

namespace counts {

namespace {

using namespace foreload;

constexpr size_t kFiles = 64, kSize = 8192;

struct Data {
  std::unique_ptr<Files> files;
  std::vector<size_t> samples = std::vector<size_t>(kFiles);
  std::vector<Place> places;
  std::vector<uint8_t> memory = std::vector<uint8_t>(kFiles * kSize);
  AdaptiveReader reader{0};  // reads in flight are the system's work, which is not counted

  void shuffle() {
    std::iota(samples.begin(), samples.end(), size_t{0});
    std::shuffle(samples.begin(), samples.end(), std::mt19937(1));
  }
  void place() {
    for (size_t i = 0; i < kFiles; ++i) places.push_back({&memory[i * kSize], kSize});
  }
  void read() {
    reader.read(*files, samples, places,
                [](size_t, std::span<const uint8_t> bytes, std::exception_ptr error) {
                  if (error) std::rethrow_exception(error);
                  if (bytes.size() != kSize)
                    throw Error(ErrorKind::decode, "the file is shorter than it was written");
                });
  }
};

void write(const std::string& path, size_t bytes) {
  std::ofstream(path, std::ios::binary) << std::string(bytes, 'x');
}

std::shared_ptr<Data> loose() {
  std::vector<std::string> paths;
  for (size_t i = 0; i < kFiles; ++i) {
    paths.push_back(std::to_string(i));
    write(paths.back(), kSize);
  }
  const auto data = std::make_shared<Data>();
  data->files = std::make_unique<Files>(paths, 0);
  data->shuffle();
  return data;
}

std::shared_ptr<Data> shard() {
  write("shard", kFiles * kSize);
  std::vector<Extent> extents;
  for (size_t i = 0; i < kFiles; ++i) extents.push_back({0, i * kSize, kSize});
  struct stat status;
  ::stat("shard", &status);
  const Stamp stamp{status.st_size, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
  const auto data = std::make_shared<Data>();
  data->files = std::make_unique<Files>(std::vector<std::string>{"shard"}, extents, std::vector{stamp}, 0);
  data->shuffle();
  return data;
}

Pass read(const std::shared_ptr<Data>& data, bool in_place) {
  if (in_place) data->place();
  return [data] { data->read(); };
}

Pass join() {
  const auto data = shard();
  const auto order = std::make_shared<std::vector<size_t>>();
  return [=] { join_neighbours(*data->files, data->samples, *order); };
}

}  // namespace

std::vector<Path> file_paths() {
  return {{"file of 8 KiB read", kFiles, [] { return read(loose(), false); }},
          {"file of 8 KiB read into the batch", kFiles, [] { return read(loose(), true); }},
          {"record of 8 KiB read from a shard", kFiles, [] { return read(shard(), false); }},
          {"record of a shard joined to its neighbours", kFiles, join}};
}

}  // namespace counts
