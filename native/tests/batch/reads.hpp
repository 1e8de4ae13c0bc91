// Files that are made for tests, and what a reader makes of them.
#pragma once

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "read.hpp"
#include "uring.hpp"

using namespace foreload;

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

constexpr unsigned kDepth = 8;
inline std::mt19937_64 generator(3);

inline size_t below(size_t count) {
  return generator() % count;
}

struct Folder {
  fs::path path;
  explicit Folder(const fs::path& parent) {
    std::string name = (parent / "foreload_read_XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

inline void write(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline std::string made(const std::string& path, size_t size) {
  Bytes bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
  write(path, bytes);
  return path;
}

inline Bytes by_stream(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Bytes all(fs::file_size(path));
  file.read(reinterpret_cast<char*>(all.data()), static_cast<std::streamsize>(all.size()));
  CHECK(static_cast<size_t>(file.gcount()) == all.size());
  return all;
}

inline Stamp stamp_of(const std::string& path) {
  struct stat status;
  CHECK(::stat(path.c_str(), &status) == 0);
  return {status.st_size, int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec};
}

struct Outcome {
  bool told = false, failed = false;
  Bytes bytes;
  ErrorKind kind{};
  int code = 0;
  std::string message, file;
};

// Calls back once for each sample, in the calling thread.
template <typename Reads>
std::vector<Outcome> outcomes(Reads& reader, Files& files, const std::vector<size_t>& samples) {
  std::vector<Outcome> all(samples.size());
  const auto thread = std::this_thread::get_id();
  const auto note = [&](size_t i, std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& known) {
      all[i].failed = true;
      all[i].kind = known.kind;
      all[i].code = known.code;
      all[i].message = known.what();
      all[i].file = known.file;
    }
  };
  reader.read(files, samples, {}, [&](size_t i, std::span<const uint8_t> bytes, std::exception_ptr error) {
    CHECK(std::this_thread::get_id() == thread && i < all.size() && !all[i].told);
    all[i].told = true;
    all[i].bytes.assign(bytes.begin(), bytes.end());
    if (error) note(i, error);
  });
  for (const auto& [i, error] : foreload::in_changed_shards(files, samples, false)) {
    note(i, error);
  }
  for (const Outcome& outcome : all) CHECK(outcome.told);
  return all;
}

inline std::vector<std::unique_ptr<Reader>> readers() {
  std::vector<std::unique_ptr<Reader>> made;
  for (const bool direct : {false, true}) {
    made.push_back(std::make_unique<PlainReader>(direct));
    if (auto uring = make_uring_reader(direct, kDepth)) made.push_back(std::move(uring));
  }
  if (made.size() == 2) std::puts("no io_uring here: its reader is not tested");
  return made;
}

inline void expect(const std::vector<Outcome>& all, const std::vector<Bytes>& expected) {
  CHECK(all.size() == expected.size());
  for (size_t i = 0; i < all.size(); ++i) CHECK(!all[i].failed && all[i].bytes == expected[i]);
}
