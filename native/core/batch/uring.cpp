#include "uring.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "error.hpp"
#include "ring.hpp"

namespace foreload {

namespace {

// The buffer of each slot, enough for most samples, which is registered with the kernel.
constexpr size_t kUsualBytes = 64 << 10;
constexpr uint64_t kMaxAtOnce = 1 << 30;
// Large reads wait for each other, and their memory is freed.
constexpr uint64_t kMaxUnderWay = 64 << 20, kMaxKept = 2 << 20;

// Returns a depth that the process can afford: each read of a file takes a descriptor while it is under way,
// and its limit must be enough for all threads and the rest of the process.
unsigned affordable(unsigned depth) {
  constexpr unsigned kMin = 4;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return depth;
  const rlim_t share = limit.rlim_cur / 4 / std::max(1U, std::thread::hardware_concurrency());
  return std::min(depth, std::max(kMin, static_cast<unsigned>(std::min<rlim_t>(share, depth))));
}

class UringReader : public Reader {
 public:
  UringReader(bool direct, unsigned depth) : direct_(direct), ring_(depth), slots_(depth) {
    if (!direct) return;
    std::vector<iovec> buffers;
    for (Slot& slot : slots_) {
      slot.usual.reserve(kUsualBytes);
      buffers.push_back({slot.usual.data(), slot.usual.size()});
    }
    // Pages that are pinned once need not be pinned for every read. The limit on locked memory may forbid it.
    registered_ = ring_.register_buffers(buffers);
  }

  void read(Files& files, std::span<const size_t> samples, std::span<const Place> places,
            const Done& done) override {
    files_ = &files;
    samples_ = samples;
    places_ = places;
    done_ = &done;
    const std::vector<ReadRange> ranges = join_neighbours(files, samples, order_);
    size_t next = 0, under_way = 0;
    free_.clear();
    for (size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
    while (next < ranges.size() || under_way > 0) {
      while (next < ranges.size() && !free_.empty()) {
        const ReadRange& range = ranges[next++];
        if (serve_kept(range)) continue;
        const size_t slot = free_.back();
        if (begin(slot, range)) {
          free_.pop_back();
          ++under_way;
        }
      }
      under_way -= read_waiting();
      if (under_way == 0) continue;
      ring_.submit(0);
      size_t ended = reap(false);
      if (ended == 0) {
        ring_.submit(1);
        ended = reap(true);
      }
      under_way -= ended;
    }
  }

 private:
  struct Slot {
    ReadRange range;
    Opened file;
    bool refused = false;                     // O_DIRECT, at the first read
    uint64_t begin = 0, wanted = 0, got = 0;  // bytes, counted from the block that the first one lies in
    uint64_t under_way = 0;                   // its share of bytes_under_way_
    uint8_t* memory = nullptr;                // in `usual`, `large` or the place
    AlignedBuffer usual, large;
  };

  // Hands out a sample that is kept in memory.
  bool serve_kept(const ReadRange& range) {
    if (range.count != 1) return false;
    const size_t i = order_[range.first];
    const auto known = files_->kept(samples_[i]);
    if (known.empty()) return false;
    (*done_)(i, known, nullptr);
    return true;
  }

  bool begin(size_t number, const ReadRange& range) {
    Slot& slot = slots_[number];
    slot.range = range;
    slot.got = slot.wanted = 0;
    slot.refused = false;
    slot.begin = direct_ ? range.offset / kDirectBlock * kDirectBlock : range.offset;
    if (!files_->in_shards()) {
      io_uring_sqe& entry = ring_.prepare(IORING_OP_OPENAT, number);
      entry.fd = AT_FDCWD;
      entry.addr = reinterpret_cast<uint64_t>(files_->path(samples_[order_[range.first]]).c_str());
      entry.open_flags = static_cast<uint32_t>(open_flags(direct_));
      return true;
    }
    try {
      slot.file = files_->shard(range.file, direct_);
      slot.wanted = range.offset + range.length - slot.begin;
      if (slot.wanted == 0) {
        slot.file = {};
        finish(slot, nullptr);
        return false;
      }
      waiting_.push_back(number);
      return true;
    } catch (...) {
      finish(slot, std::current_exception());
      return false;
    }
  }

  // Handles the operations that have ended; returns how many ranges are done.
  size_t reap(bool waited) {
    size_t ended = 0;
    io_uring_cqe entry;
    while (ring_.take(entry)) {
      const auto number = static_cast<size_t>(entry.user_data);
      Slot& slot = slots_[number];
      try {
        if (go_on(number, entry.res)) continue;
        finish(slot, nullptr);
      } catch (...) {
        finish(slot, std::current_exception());
      }
      files_->note_read(waited);
      release(number);
      ++ended;
    }
    return ended + read_waiting();
  }

  void release(size_t number) {
    Slot& slot = slots_[number];
    bytes_under_way_ -= std::exchange(slot.under_way, 0);
    slot.file = {};
    if (slot.large.size() > kMaxKept) slot.large = {};
    free_.push_back(number);
  }

  // Begins the reads whose size is known and for which there is room; returns how many have failed.
  size_t read_waiting() {
    size_t ended = 0;
    while (!waiting_.empty()) {
      const size_t number = waiting_.back();
      Slot& slot = slots_[number];
      if (bytes_under_way_ > 0 && bytes_under_way_ + slot.wanted > kMaxUnderWay) break;
      waiting_.pop_back();
      bytes_under_way_ += slot.under_way = slot.wanted;
      try {
        slot.memory = place_of(slot);
        if (slot.memory == nullptr) {
          AlignedBuffer& room = slot.wanted <= kUsualBytes ? slot.usual : slot.large;
          room.reserve(slot.wanted <= kUsualBytes ? kUsualBytes : slot.wanted + kDirectBlock);
          slot.memory = room.data();
        }
        read_on(number);
      } catch (...) {
        finish(slot, std::current_exception());
        release(number);
        ++ended;
      }
    }
    return ended;
  }

  // Returns the place of a sample, if it can be read into directly: alone, and in whole blocks for O_DIRECT.
  uint8_t* place_of(const Slot& slot) const {
    if (places_.empty() || slot.range.count != 1) return nullptr;
    const Place& place = places_[order_[slot.range.first]];
    if (place.size != slot.wanted || files_->keeps(samples_[order_[slot.range.first]])) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(place.memory);
    const bool in_blocks = (address | slot.wanted | (slot.range.offset - slot.begin)) % kDirectBlock == 0;
    return direct_ && !in_blocks ? nullptr : place.memory;
  }

  // Takes the result of an operation; returns whether the range needs another one.
  bool go_on(size_t number, int result) {
    Slot& slot = slots_[number];
    const std::string& path = files_->path(samples_[order_[slot.range.first]]);
    if (slot.file < 0) {
      // The file system has no O_DIRECT, or the file a lease.
      if ((result == -EINVAL && direct_) || result == -EAGAIN) result = open_file(path, false);
      if (result < 0) throw Error(ErrorKind::system, std::strerror(-result), path, -result);
      slot.file = {result, Descriptor(result)};
      const struct stat status = regular_status(slot.file, path);
      if (direct_) let_reads_wait(slot.file);  // else only where the page cache has not all of it, below
      if (!has_size(status)) {
        const auto bytes = read_file(path, sizeless_);
        slot.memory = sizeless_.data();
        slot.got = slot.wanted = bytes.size();
        return false;
      }
      slot.wanted = static_cast<uint64_t>(status.st_size);
      waiting_.push_back(number);
      return true;
    }
    if (result == -EINTR || result == -EAGAIN) {
      if (result == -EAGAIN) let_reads_wait(slot.file);
      read_on(number);
      return true;
    }
    if (result == -EINVAL && direct_ && !std::exchange(slot.refused, true)) {
      slot.file = files_->in_shards() ? files_->shard(slot.range.file, false) : open_buffered(path);
      read_on(number);
      return true;
    }
    if (result < 0) throw Error(ErrorKind::system, std::strerror(-result), path, -result);
    const uint64_t come = read_from(slot) + static_cast<uint64_t>(result);
    if (come <= slot.got) return false;  // the file's end
    slot.got = come;
    if (slot.got >= slot.wanted) return false;
    read_on(number);
    return true;
  }

  static Opened open_buffered(const std::string& path) {
    Descriptor own(open_file(path, false));
    const int fd = own;
    regular_status(fd, path);
    let_reads_wait(fd);
    return {fd, std::move(own)};
  }

  // Returns where to read on. With O_DIRECT, a block of which a part came is read again: at the file's end,
  // no more of it comes.
  uint64_t read_from(const Slot& slot) const {
    return direct_ ? slot.got / kDirectBlock * kDirectBlock : slot.got;
  }

  void read_on(size_t number) {
    Slot& slot = slots_[number];
    const uint64_t from = read_from(slot), left = slot.wanted - from;
    const uint64_t length = std::min(direct_ ? whole_blocks(left) : left, kMaxAtOnce);
    const bool fixed = registered_ && slot.memory == slot.usual.data();
    io_uring_sqe& entry = ring_.prepare(fixed ? IORING_OP_READ_FIXED : IORING_OP_READ, number);
    entry.fd = slot.file;
    entry.off = slot.begin + from;
    entry.addr = reinterpret_cast<uint64_t>(slot.memory + from);
    entry.len = static_cast<uint32_t>(length);
    entry.buf_index = fixed ? static_cast<uint16_t>(number) : 0;
  }

  // Hands out the samples of a range.
  void finish(Slot& slot, std::exception_ptr error) {
    for (size_t k = 0; k < slot.range.count; ++k) {
      const size_t i = order_[slot.range.first + k];
      if (error) {
        (*done_)(i, {}, error);
        continue;
      }
      const Extent extent = files_->extent(samples_[i]);
      const bool whole = extent.length == Extent::kWhole;
      const uint64_t from = whole ? 0 : extent.offset - slot.begin;
      const uint64_t length = whole ? std::min(slot.got, slot.wanted) : extent.length;
      if (from + length > slot.got) {
        (*done_)(i, {}, cut_short(*files_, samples_[i], slot.got - std::min(slot.got, from)));
        continue;
      }
      const std::span<const uint8_t> bytes(slot.memory + from, length);
      files_->keep(samples_[i], bytes);
      (*done_)(i, bytes, nullptr);
    }
  }

  const bool direct_;
  bool registered_ = false;
  Ring ring_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_, order_;
  std::vector<size_t> waiting_;  // slots whose size is known and whose read has not begun
  uint64_t bytes_under_way_ = 0;
  std::vector<uint8_t> sizeless_;
  Files* files_ = nullptr;
  std::span<const size_t> samples_;
  std::span<const Place> places_;
  const Done* done_ = nullptr;
};

}  // namespace

std::unique_ptr<Reader> make_uring_reader(bool direct, unsigned depth) {
  try {
    return std::make_unique<UringReader>(direct, affordable(depth));
  } catch (const Error&) {
    return nullptr;
  } catch (const std::bad_alloc&) {  // one read after the other takes less
    return nullptr;
  }
}

}  // namespace foreload
