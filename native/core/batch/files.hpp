// The files that samples lie in: a file each, or extents of shards.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace foreload {

// The descriptor of an open file, closed with it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  operator int() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

// Whether the process may have as many files open, half of them left to the rest of it: a descriptor is the
// lowest free number, so it says how many are open.
bool may_stay_open(int fd);

// An open file: kept open, or closed with this.
struct Opened {
  int fd = -1;
  Descriptor own;
  operator int() const { return fd; }
};

// A part of a file. Whole files have no length until they are read.
struct Extent {
  static constexpr uint64_t kWhole = UINT64_MAX;
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t length = kWhole;
};

// The state of a shard when its index was made.
struct Stamp {
  int64_t size = 0;
  int64_t modified = 0;  // nanoseconds
};

class Files {
 public:
  // Sample i is the whole of file i; the first `keep` stay in memory once read.
  Files(std::vector<std::string> paths, size_t keep);
  // Sample i is extents[i]; files that differ from their stamps are refused.
  Files(std::vector<std::string> paths, std::vector<Extent> extents, std::vector<Stamp> stamps, size_t keep);
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  size_t size() const { return extents_.empty() ? paths_.size() : extents_.size(); }
  Extent extent(size_t sample) const {
    return extents_.empty() ? Extent{static_cast<uint32_t>(sample)} : extents_[sample];
  }
  // The file that a sample lies in.
  const std::string& path(size_t sample) const { return paths_[extent(sample).file]; }
  // Opens a shard; it stays open if the process may have as many files open. Throws Error(system),
  // Error(decode) if it has changed.
  Opened shard(uint32_t file, bool direct);
  // To be called after reads of a shard: another process may write to it at any time. Throws as shard() does.
  void check_unchanged(uint32_t file, int fd) const;
  // Returns what is wrong with a shard since its index was made, if anything.
  std::exception_ptr change(uint32_t file, bool direct);
  bool in_shards() const { return !extents_.empty(); }

  // Whether reads go past the page cache, where the file system can.
  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  void set_direct(bool direct) { direct_.store(direct, std::memory_order_relaxed); }
  // Returns a file that is read through the page cache all the same, and why. One file is tried of each file
  // system that the folders of these files lie on.
  std::optional<std::pair<std::string, std::string>> direct_problem() const;

  // A number that changes with the file of a sample, as its status tells; -1: there is no such file.
  int64_t state(size_t sample) const;

  // The bytes kept of a sample; empty if there are none.
  std::span<const uint8_t> kept(size_t sample) const;
  // Whether a sample is one of those that are kept.
  bool keeps(size_t sample) const { return sample < kept_.size(); }
  // Keeps what was read, if it is to be kept.
  void keep(size_t sample, std::span<const uint8_t> bytes);

  // Returns the bytes kept, or read into `buffer`, which only ever grows. Safe from several threads, each
  // with a buffer of its own. Throws Error(system), Error(decode) if the file is empty or ends too early.
  std::span<const uint8_t> bytes(size_t sample, std::vector<uint8_t>& buffer);

  // Whether reads have lately had to wait for the disk, as readers report.
  bool cold() const { return coldness_.load(std::memory_order_relaxed) > 0.25F; }
  void note_read(bool waited);
  void note_read(std::chrono::duration<double> took, uint64_t bytes);
  void expect_cold() { coldness_.store(1, std::memory_order_relaxed); }

 private:
  enum State : uint8_t { absent, filling, present };
  struct Kept {
    std::atomic<State> state{absent};
    std::vector<uint8_t> bytes;
  };
  struct Shard {
    std::atomic<int> buffered{-1}, direct{-1};
    ~Shard();
  };

  std::vector<std::string> paths_;
  std::vector<Extent> extents_;
  std::vector<Stamp> stamps_;
  std::vector<Kept> kept_;
  std::vector<Shard> shards_;
  std::atomic<float> coldness_{0};
  std::atomic<bool> direct_{false};
};

}  // namespace foreload
