#include "read.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>

#include "error.hpp"
#include "spans.hpp"
#include "uring.hpp"

namespace foreload {

namespace {

// Reading over a gap is cheaper than another read; a read that is too long makes others wait.
constexpr uint64_t kMaxGap = 16 << 10, kMaxJoined = 1 << 20;

[[noreturn]] void fail(const std::string& path) {
  const int code = errno;
  throw Error(ErrorKind::system, std::strerror(code), path, code);
}

std::span<const uint8_t> read_extent(int fd, const Extent& extent, std::vector<uint8_t>& buffer,
                                     const std::string& path) {
  if (buffer.size() < extent.length) buffer.resize(extent.length + extent.length / 4);
  uint64_t size = 0;
  while (size < extent.length) {
    const ssize_t got =
        ::pread(fd, buffer.data() + size, extent.length - size, static_cast<off_t>(extent.offset + size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path);
    if (got == 0) break;
    size += static_cast<uint64_t>(got);
  }
  return {buffer.data(), size};
}

std::span<const uint8_t> read_buffered(Files& files, size_t sample, std::vector<uint8_t>& buffer) {
  const Extent extent = files.extent(sample);
  const std::string& path = files.path(sample);
  if (extent.length == Extent::kWhole) return read_file(path, buffer);
  const Opened fd = files.shard(extent.file, false);
  const auto bytes = read_extent(fd, extent, buffer, path);
  files.check_unchanged(extent.file, fd);
  if (bytes.size() != extent.length) std::rethrow_exception(cut_short(files, sample, bytes.size()));
  return bytes;
}

// Opens the file that a sample lies in.
Opened open_sample(Files& files, size_t sample, bool direct) {
  const Extent extent = files.extent(sample);
  if (extent.length != Extent::kWhole) return files.shard(extent.file, direct);
  Descriptor own(open_file(files.path(sample), direct));
  const int fd = own;
  return {fd, std::move(own)};
}

// Returns whether the sample has exactly as many bytes as the place.
bool read_into(Files& files, size_t sample, const Place& place) {
  const Extent extent = files.extent(sample);
  const bool whole = extent.length == Extent::kWhole;
  const Opened fd = open_sample(files, sample, false);
  uint64_t size = 0;
  uint8_t more;
  while (size < place.size) {
    // One byte more is requested of a whole file, to see whether it has grown.
    const iovec parts[2] = {{place.memory + size, place.size - size}, {&more, 1}};
    const ssize_t got = ::preadv(fd, parts, whole ? 2 : 1, static_cast<off_t>(extent.offset + size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == ESPIPE) regular_status(fd, files.path(sample));  // a FIFO or a socket
    if (got < 0) fail(files.path(sample));
    if (got == 0) break;
    size += static_cast<uint64_t>(got);
  }
  return size == place.size;
}

// Reads past the page cache: the blocks that hold the sample. If that cannot be done, it goes to `buffer`.
std::span<const uint8_t> read_blocks(Files& files, size_t sample, AlignedBuffer& aligned,
                                     std::vector<uint8_t>& buffer) {
  const Extent extent = files.extent(sample);
  const bool whole = extent.length == Extent::kWhole;
  const std::string& path = files.path(sample);
  const Opened fd = open_sample(files, sample, true);
  const uint64_t begin = extent.offset / kDirectBlock * kDirectBlock, skipped = extent.offset - begin;
  uint64_t wanted = skipped + extent.length;
  if (whole) {
    const struct stat status = regular_status(fd, path);
    if (!has_size(status)) return read_file(path, buffer);
    wanted = static_cast<uint64_t>(status.st_size);
  }
  aligned.reserve(wanted + kDirectBlock);
  uint64_t size = 0;
  while (size < wanted) {
    // A block of which a part came is read again: at the file's end, no more of it comes.
    const uint64_t from = size / kDirectBlock * kDirectBlock;
    const ssize_t got =
        ::pread(fd, aligned.data() + from, whole_blocks(wanted - from), static_cast<off_t>(begin + from));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EINVAL) return read_buffered(files, sample, buffer);  // refused only now
    if (got < 0) fail(path);
    if (from + static_cast<uint64_t>(got) <= size) break;
    size = from + static_cast<uint64_t>(got);
  }
  if (!whole && size < wanted)
    std::rethrow_exception(cut_short(files, sample, size - std::min(size, skipped)));
  return {aligned.data() + skipped, std::min(size, wanted) - skipped};
}

}  // namespace

std::vector<ReadRange> join_neighbours(const Files& files, std::span<const size_t> samples,
                                       std::vector<size_t>& order) {
  order.resize(samples.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<ReadRange> ranges;
  ranges.reserve(samples.size());
  if (!files.in_shards()) {
    for (size_t i = 0; i < samples.size(); ++i) {
      ranges.push_back({files.extent(samples[i]).file, 0, Extent::kWhole, i, 1});
    }
    return ranges;
  }
  const auto at = [&](size_t i) {
    const Extent extent = files.extent(samples[i]);
    return std::pair(extent.file, extent.offset);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at(a) < at(b); });
  for (size_t i = 0; i < order.size(); ++i) {
    const Extent extent = files.extent(samples[order[i]]);
    const uint64_t end = extent.offset + extent.length;
    if (!ranges.empty()) {
      ReadRange& last = ranges.back();
      const uint64_t last_end = last.offset + last.length;
      if (last.file == extent.file && extent.offset <= last_end + kMaxGap &&
          end - last.offset <= kMaxJoined) {
        last.length = std::max(last_end, end) - last.offset;
        ++last.count;
        continue;
      }
    }
    ranges.push_back({extent.file, extent.offset, extent.length, i, 1});
  }
  return ranges;
}

bool has_size(const struct stat& status) {
  return status.st_size > 0;
}

int open_flags(bool direct) {
  return O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (direct ? O_DIRECT : 0);
}

int open_file(const std::string& path, bool direct) {
  int fd = -1;
  if (direct) fd = ::open(path.c_str(), open_flags(true));
  // Some file systems refuse O_DIRECT with EINVAL.
  if (fd < 0 && (!direct || errno == EINVAL)) fd = ::open(path.c_str(), open_flags(false));
  // Somebody holds a lease on the file, which the system takes back while this waits.
  if (fd < 0 && errno == EWOULDBLOCK) fd = ::open(path.c_str(), open_flags(false) & ~O_NONBLOCK);
  if (fd < 0) fail(path);
  return fd;
}

struct stat regular_status(int fd, const std::string& path) {
  struct stat status;
  if (::fstat(fd, &status) != 0) fail(path);
  if (S_ISDIR(status.st_mode)) throw Error(ErrorKind::system, std::strerror(EISDIR), path, EISDIR);
  if (S_ISREG(status.st_mode)) return status;
  throw Error(ErrorKind::system,
              "not a regular file but a FIFO, device or socket; remove it from the dataset", path, EINVAL);
}

void let_reads_wait(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

std::span<const uint8_t> read_file(const std::string& path, std::vector<uint8_t>& buffer) {
  const Descriptor fd(open_file(path, false));
  const struct stat status = regular_status(fd, path);
  // One byte more than the size, so that a single read both fills the buffer and sees the end.
  size_t capacity = static_cast<size_t>(status.st_size) + 1;
  size_t size = 0;
  for (;;) {
    if (buffer.size() < capacity) buffer.resize(capacity + capacity / 4);
    const ssize_t got = ::read(fd, buffer.data() + size, buffer.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path);
    if (got == 0) return {buffer.data(), size};
    size += static_cast<size_t>(got);
    // If all of it was read, no second read is needed to see its end.
    if (has_size(status) && size == static_cast<size_t>(status.st_size)) return {buffer.data(), size};
    capacity = size + 65536;
  }
}

std::exception_ptr cut_short(const Files& files, size_t sample, uint64_t got) {
  const Extent extent = files.extent(sample);
  return std::make_exception_ptr(Error(
      ErrorKind::decode,
      "the shard is cut short: sample " + std::to_string(sample) + " has " + std::to_string(extent.length) +
          " bytes at " + std::to_string(extent.offset) + ", only " + std::to_string(got) + " are there",
      files.path(sample)));
}

std::span<const uint8_t> read_sample(Files& files, size_t sample, std::vector<uint8_t>& buffer) {
  if (!files.direct()) return read_buffered(files, sample, buffer);
  AlignedBuffer aligned;
  const auto bytes = read_blocks(files, sample, aligned, buffer);
  if (files.in_shards()) {
    if (const auto changed = files.change(files.extent(sample).file, true)) std::rethrow_exception(changed);
  }
  if (bytes.data() != buffer.data()) buffer.assign(bytes.begin(), bytes.end());
  return {buffer.data(), bytes.size()};
}

void PlainReader::read(Files& files, std::span<const size_t> samples, std::span<const Place> places,
                       const Done& done) {
  for (size_t i = 0; i < samples.size(); ++i) {
    std::span<const uint8_t> bytes;
    std::exception_ptr error;
    try {
      bytes = read_one(files, samples[i], places.empty() ? Place{} : places[i]);
    } catch (...) {
      bytes = {};
      error = std::current_exception();
    }
    done(i, bytes, error);
  }
}

std::span<const uint8_t> PlainReader::read_one(Files& files, size_t sample, const Place& place) {
  if (direct_) {
    std::span<const uint8_t> bytes = files.kept(sample);
    if (bytes.empty()) bytes = read_blocks(files, sample, aligned_, buffer_);
    files.keep(sample, bytes);
    return bytes;
  }
  if (place.size == 0 || files.keeps(sample)) return files.bytes(sample, buffer_);
  const auto begin = std::chrono::steady_clock::now();
  const bool whole = read_into(files, sample, place);
  files.note_read(std::chrono::steady_clock::now() - begin, place.size);
  // If its size has changed, the caller finds out by the number of bytes.
  return whole ? std::span<const uint8_t>(place.memory, place.size) : files.bytes(sample, buffer_);
}

AdaptiveReader::~AdaptiveReader() {
  if (process_ != ::getpid()) forget();
}

// Releases the readers of the process that forked this one without destroying them: its reads may be under
// way, and what they had mapped is not mapped here.
void AdaptiveReader::forget() {
  for (auto& idle : {&idle_[0][0], &idle_[0][1], &idle_[1][0], &idle_[1][1]}) {
    for (auto& reader : *idle) (void)reader.release();
    idle->clear();
  }
}

// The lock is never waited for: if another thread held it when the process forked, it stays locked in the
// child.
std::unique_ptr<Reader> AdaptiveReader::take(bool direct, bool many) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && process_ != ::getpid()) {
    forget();
    process_ = ::getpid();
  }
  auto& idle = idle_[direct][many];
  if (lock && !idle.empty()) {
    auto reader = std::move(idle.back());
    idle.pop_back();
    return reader;
  }
  auto reader = many ? make_uring_reader(direct, depth_) : nullptr;
  return reader ? std::move(reader) : std::make_unique<PlainReader>(direct);
}

void AdaptiveReader::put_back(std::unique_ptr<Reader> reader, bool direct, bool many) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && process_ == ::getpid()) idle_[direct][many].push_back(std::move(reader));
}

std::vector<std::pair<size_t, std::exception_ptr>> AdaptiveReader::read(Files& files,
                                                                        std::span<const size_t> samples,
                                                                        std::span<const Place> places,
                                                                        const Reader::Done& done) {
  Measure measure(Stage::read, samples.size());
  // Samples that are kept in memory are not read again.
  for (const size_t sample : samples) measure.add_bytes(-files.kept(sample).size());
  const Reader::Done counted = [&](size_t i, std::span<const uint8_t> bytes, std::exception_ptr error) {
    measure.add_bytes(bytes.size());
    done(i, bytes, std::move(error));
  };
  const bool direct = files.direct(), together = many(files);
  auto reader = take(direct, together);
  reader->read(files, samples, places, counted);
  put_back(std::move(reader), direct, together);
  return in_changed_shards(files, samples, direct);
}

std::vector<std::pair<size_t, std::exception_ptr>> in_changed_shards(Files& files,
                                                                     std::span<const size_t> samples,
                                                                     bool direct) {
  std::vector<std::pair<size_t, std::exception_ptr>> changed;
  if (!files.in_shards()) return changed;
  std::map<uint32_t, std::exception_ptr> shards;
  for (size_t i = 0; i < samples.size(); ++i) {
    const uint32_t file = files.extent(samples[i]).file;
    const auto [entry, is_new] = shards.try_emplace(file);
    if (is_new) entry->second = files.change(file, direct);
    if (entry->second) changed.emplace_back(i, entry->second);
  }
  return changed;
}

}  // namespace foreload
