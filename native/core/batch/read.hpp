// Readers: the bytes of samples from files, by one read after the other or many in flight (uring.hpp).
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "direct.hpp"
#include "files.hpp"

struct stat;

namespace foreload {

// One read that serves neighbours in a shard, or a whole file.
struct ReadRange {
  uint32_t file = 0;
  uint64_t offset = 0, length = Extent::kWhole;
  size_t first = 0, count = 0;  // of the samples in order
};

// Orders samples as they lie in their shards, and joins neighbours. `order` gets their positions.
std::vector<ReadRange> join_neighbours(const Files& files, std::span<const size_t> samples,
                                       std::vector<size_t>& order);

// Flags that open a file for reading, past the page cache if `direct`. They never wait: what has no end, or
// begins only once somebody writes to it, is opened at once, and is then refused by regular_status().
int open_flags(bool direct);

// Opens a file with these flags, without `direct` if the file system cannot. The descriptor is the caller's.
// Throws Error(system).
int open_file(const std::string& path, bool direct);

// Returns the status of an open file. Throws Error(system) if it is a FIFO, device, socket or folder.
struct stat regular_status(int fd, const std::string& path);

// Makes reads of a regular file wait for the disk, which io_uring's otherwise would not.
void let_reads_wait(int fd);

// Whether the size that the system reports is that of the content; in /proc it is not.
bool has_size(const struct stat& status);

// Reads a whole file. The span lies in `buffer`, which only ever grows. Throws Error(system).
std::span<const uint8_t> read_file(const std::string& path, std::vector<uint8_t>& buffer);

// Reads a sample, past the page cache if `files` is direct. Throws Error(system), Error(decode) if its shard
// ends too early.
std::span<const uint8_t> read_sample(Files& files, size_t sample, std::vector<uint8_t>& buffer);

// Returns the Error for a sample of whose bytes only `got` are there.
std::exception_ptr cut_short(const Files& files, size_t sample, uint64_t got);

// The destination of a sample's bytes, if it is known how many there are.
struct Place {
  uint8_t* memory = nullptr;
  uint64_t size = 0;
};

// Reads samples. Used by one thread at a time.
class Reader {
 public:
  // Called with the bytes of samples[i], valid during the call only (or in its place), or its error. Must not
  // throw.
  using Done = std::function<void(size_t i, std::span<const uint8_t> bytes, std::exception_ptr error)>;

  virtual ~Reader() = default;
  // Reads samples and calls `done` for each as it comes, in any order, in this thread. `places` is empty, or
  // has one for each sample: bytes are read into it directly if possible, so `done` must look where they are.
  // Samples in shards must be checked afterwards, by in_changed_shards().
  virtual void read(Files& files, std::span<const size_t> samples, std::span<const Place> places,
                    const Done& done) = 0;
};

// Returns which of samples[i] lie in shards that have changed since their index was made, so that what was
// read of them is not valid. Checks each shard once.
std::vector<std::pair<size_t, std::exception_ptr>> in_changed_shards(Files& files,
                                                                     std::span<const size_t> samples,
                                                                     bool direct);

// One read after the other.
class PlainReader : public Reader {
 public:
  explicit PlainReader(bool direct) : direct_(direct) {}
  void read(Files& files, std::span<const size_t> samples, std::span<const Place> places,
            const Done& done) override;

 private:
  std::span<const uint8_t> read_one(Files& files, size_t sample, const Place& place);

  const bool direct_;
  std::vector<uint8_t> buffer_;
  AlignedBuffer aligned_;
};

// Reads with the reader that suits: many at a time if reads go past the page cache or have had to wait for
// the disk lately; otherwise one after the other. Readers and what they have set up are kept for the next
// batch.
class AdaptiveReader {
 public:
  // `depth`: reads in flight of one thread, if the system grants io_uring.
  explicit AdaptiveReader(unsigned depth) : depth_(depth) {}
  ~AdaptiveReader();

  // As Reader::read(). Returns in_changed_shards().
  std::vector<std::pair<size_t, std::exception_ptr>> read(Files& files, std::span<const size_t> samples,
                                                          std::span<const Place> places,
                                                          const Reader::Done& done);
  // Whether many will be read at a time, so that a run of samples should be long.
  bool many(const Files& files) const { return depth_ > 0 && (files.direct() || files.cold()); }

 private:
  void forget();
  std::unique_ptr<Reader> take(bool direct, bool many);
  void put_back(std::unique_ptr<Reader> reader, bool direct, bool many);

  unsigned depth_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Reader>> idle_[2][2];  // by direct, many
  int process_ = 0;
};

}  // namespace foreload
