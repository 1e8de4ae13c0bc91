#include "files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "direct.hpp"
#include "error.hpp"
#include "read.hpp"

namespace foreload {

namespace {

// A read that takes longer than this, and than copying at this rate, has waited for the disk.
constexpr double kWarmSeconds = 60e-6, kWarmRate = 2e9;

}  // namespace

bool may_stay_open(int fd) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) < limit.rlim_cur / 2;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

int Descriptor::release() {
  return std::exchange(fd_, -1);
}

Files::Files(std::vector<std::string> paths, size_t keep) : paths_(std::move(paths)), kept_(keep) {}

Files::Files(std::vector<std::string> paths, std::vector<Extent> extents, std::vector<Stamp> stamps,
             size_t keep)
    : paths_(std::move(paths)),
      extents_(std::move(extents)),
      stamps_(std::move(stamps)),
      kept_(keep),
      shards_(paths_.size()) {
  if (extents_.empty()) throw Error(ErrorKind::value, "there are no samples");
  if (stamps_.size() != paths_.size()) throw Error(ErrorKind::value, "each shard needs a stamp");
  for (const Extent& extent : extents_) {
    if (extent.file >= paths_.size()) throw Error(ErrorKind::value, "an extent lies in no shard");
  }
}

Files::Shard::~Shard() {
  for (const int fd : {buffered.load(), direct.load()}) {
    if (fd >= 0) ::close(fd);
  }
}

// Without a lock, since a forked child might find it locked.
Opened Files::shard(uint32_t file, bool direct) {
  std::atomic<int>& open = direct ? shards_[file].direct : shards_[file].buffered;
  int known = open.load(std::memory_order_acquire);
  if (known >= 0) return {known, {}};
  Descriptor own(open_file(paths_[file], direct));
  const int fd = own;
  check_unchanged(file, fd);
  let_reads_wait(fd);
  if (!may_stay_open(fd)) return {fd, std::move(own)};
  if (open.compare_exchange_strong(known, fd, std::memory_order_acq_rel)) return {own.release(), {}};
  return {known, {}};  // another thread was first
}

void Files::check_unchanged(uint32_t file, int fd) const {
  struct stat status;
  if (::fstat(fd, &status) != 0) throw Error(ErrorKind::system, std::strerror(errno), paths_[file], errno);
  const int64_t modified = int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec;
  if (status.st_size != stamps_[file].size || modified != stamps_[file].modified) {
    throw Error(ErrorKind::decode, "the shard has changed since its index was made; open the dataset again",
                paths_[file]);
  }
}

std::span<const uint8_t> Files::kept(size_t sample) const {
  if (sample >= kept_.size() || kept_[sample].state.load(std::memory_order_acquire) != present) return {};
  return kept_[sample].bytes;
}

void Files::keep(size_t sample, std::span<const uint8_t> bytes) {
  State expected = absent;
  if (sample >= kept_.size() || !kept_[sample].state.compare_exchange_strong(expected, filling)) return;
  if (in_shards() && change(extent(sample).file, false)) {
    kept_[sample].state.store(absent, std::memory_order_release);
    return;
  }
  kept_[sample].bytes.assign(bytes.begin(), bytes.end());
  kept_[sample].state.store(present, std::memory_order_release);
}

std::span<const uint8_t> Files::bytes(size_t sample, std::vector<uint8_t>& buffer) {
  if (const auto known = kept(sample); !known.empty()) return known;
  const auto begin = std::chrono::steady_clock::now();
  const auto bytes = read_sample(*this, sample, buffer);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  note_read(took, bytes.size());
  keep(sample, bytes);
  return bytes;
}

void Files::note_read(std::chrono::duration<double> took, uint64_t bytes) {
  note_read(took.count() > kWarmSeconds + static_cast<double>(bytes) / kWarmRate);
}

std::optional<std::pair<std::string, std::string>> Files::direct_problem() const {
  std::set<std::string_view> folders;
  std::set<dev_t> devices;
  std::optional<std::string_view> last;
  for (const std::string& path : paths_) {
    const std::string_view folder(path.data(), path.rfind('/') + 1);
    struct stat status;
    if (folder == last || folders.contains(folder) || ::stat(path.c_str(), &status) != 0 ||
        !S_ISREG(status.st_mode) || status.st_size == 0) {
      continue;
    }
    folders.insert(folder);
    last = folder;
    if (!devices.insert(status.st_dev).second) continue;
    if (std::string problem = foreload::direct_problem(path); !problem.empty()) {
      return std::pair(path, std::move(problem));
    }
  }
  return std::nullopt;
}

int64_t Files::state(size_t sample) const {
  struct stat status;
  if (::stat(path(sample).c_str(), &status) != 0) return -1;
  uint64_t state = 0;
  for (const int64_t part :
       {static_cast<int64_t>(status.st_dev), static_cast<int64_t>(status.st_ino),
        static_cast<int64_t>(status.st_size), static_cast<int64_t>(status.st_mtim.tv_sec),
        static_cast<int64_t>(status.st_mtim.tv_nsec), static_cast<int64_t>(status.st_ctim.tv_sec),
        static_cast<int64_t>(status.st_ctim.tv_nsec)}) {
    state = (std::rotl(state, 23) ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15U;
  }
  return static_cast<int64_t>(state >> 1 | 1);
}

std::exception_ptr Files::change(uint32_t file, bool direct) {
  try {
    check_unchanged(file, shard(file, direct));
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void Files::note_read(bool waited) {
  const float before = coldness_.load(std::memory_order_relaxed);
  coldness_.store(before + ((waited ? 1.0F : 0.0F) - before) / 32, std::memory_order_relaxed);
}

}  // namespace foreload
