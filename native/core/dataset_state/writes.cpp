#include "writes.hpp"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace foreload {

// The pages of a watch.
struct Watched {
  uintptr_t begin = 0, end = 0;
  pid_t process = 0;
  bool is_known = true;
  bool is_written = false;
};

namespace {

// Each may cut a mapping of the process into three, of which it may have 65,530.
constexpr size_t kMostWatches = 512;

// What older headers of the kernel lack; see linux/userfaultfd.h and linux/fs.h.
constexpr int kUserModeOnly = 1;
constexpr uint64_t kUnpopulated = 1U << 13, kAsynchronous = 1U << 15;
constexpr uint64_t kProtectMatching = 1, kCheckAsynchronous = 2;  // flags of a scan
constexpr uint64_t kIsWritten = 1U << 1;                          // a category of pages
constexpr uint64_t kIsShared = 8;                                 // a flag of a mapping

struct Region {
  uint64_t begin, end, categories;
};

struct Scan {
  uint64_t size, flags, begin, end, walk_end, regions, num_regions, most_pages;
  uint64_t inverted, all_of, any_of, returned;
};

struct Mapping {
  uint64_t size, query_flags, address, begin, end, flags, page_size, offset, inode;
  uint32_t major, minor, name_size, build_id_size;
  uint64_t name, build_id;
};

constexpr unsigned long kScanPages = _IOWR('f', 16, Scan), kQueryMapping = _IOWR('f', 17, Mapping);

// All watches of a process. What one of them finds is noted for the others too, since finding protects pages
// anew.
class Watches {
 public:
  Watches() : process_(getpid()) {
    pages_ = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    mappings_ = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    faults_ = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly));
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = kUnpopulated | kAsynchronous;
    is_there_ = pages_ >= 0 && mappings_ >= 0 && faults_ >= 0 && ioctl(faults_, UFFDIO_API, &api) == 0;
    if (!is_there_) shut();
  }
  ~Watches() { shut(); }
  Watches(const Watches&) = delete;
  Watches& operator=(const Watches&) = delete;

  pid_t process() const { return process_; }

  bool add(Watched& watched) {
    const std::lock_guard lock(mutex_);
    if (!is_there_ || watches_.size() >= kMostWatches || !is_private(watched)) return false;
    uffdio_register range{};
    range.range = {watched.begin, watched.end - watched.begin};
    range.mode = UFFDIO_REGISTER_MODE_WP;
    if (ioctl(faults_, UFFDIO_REGISTER, &range) != 0 || !scan(watched)) return false;
    watched.process = process_;
    watched.is_known = true;
    watched.is_written = false;
    watches_.push_back(&watched);
    return true;
  }

  void remove(Watched& watched) {
    const std::lock_guard lock(mutex_);
    watches_.erase(std::find(watches_.begin(), watches_.end(), &watched));
    for (const Watched* other : watches_) {
      if (other->begin < watched.end && watched.begin < other->end) return;
    }
    uffdio_range range{watched.begin, watched.end - watched.begin};
    ioctl(faults_, UFFDIO_UNREGISTER, &range);  // it fails if the memory is gone
  }

  WriteWatch::Seen look(Watched& watched) {
    const std::lock_guard lock(mutex_);
    watched.is_known = watched.is_known && scan(watched);
    if (!watched.is_known) return WriteWatch::Seen::unknown;
    const bool is_written = std::exchange(watched.is_written, false);
    return is_written ? WriteWatch::Seen::write : WriteWatch::Seen::nothing;
  }

 private:
  // Protects the pages that have been written to, and notes them for all watches over them.
  bool scan(const Watched& watched) {
    std::array<Region, 32> regions;
    Scan scan{};
    scan.size = sizeof scan;
    scan.flags = kProtectMatching | kCheckAsynchronous;
    scan.regions = reinterpret_cast<uintptr_t>(regions.data());
    scan.num_regions = regions.size();
    scan.all_of = scan.returned = kIsWritten;
    scan.end = watched.end;
    for (scan.begin = watched.begin; scan.begin < watched.end; scan.begin = scan.walk_end) {
      const int found = ioctl(pages_, kScanPages, &scan);
      if (found < 0 || scan.walk_end <= scan.begin) return false;
      for (int place = 0; place < found; ++place) note(regions[static_cast<size_t>(place)]);
    }
    return true;
  }

  void note(const Region& region) {
    for (Watched* watched : watches_) {
      if (watched->begin < region.end && region.begin < watched->end) watched->is_written = true;
    }
  }

  // Whether all of it is this process's alone, and of no file.
  bool is_private(const Watched& watched) const {
    for (uintptr_t at = watched.begin; at < watched.end;) {
      Mapping mapping{};
      mapping.size = sizeof mapping;
      mapping.address = at;
      if (ioctl(mappings_, kQueryMapping, &mapping) != 0) return false;
      if ((mapping.flags & kIsShared) != 0 || mapping.inode != 0) return false;
      at = mapping.end;
    }
    return true;
  }

  void shut() {
    for (int* file : {&pages_, &mappings_, &faults_}) {
      if (*file >= 0) close(*file);
      *file = -1;
    }
  }

  std::mutex mutex_;
  const pid_t process_;
  int pages_ = -1, mappings_ = -1, faults_ = -1;
  bool is_there_ = false;
  std::vector<Watched*> watches_;
};

// Those of this process. A fork leaves its parent's alone, whose lock another thread may have held.
Watches& watches() {
  static std::atomic<Watches*> present{nullptr};
  Watches* known = present.load();
  if (known != nullptr && known->process() == getpid()) return *known;
  auto made = std::make_unique<Watches>();
  if (present.compare_exchange_strong(known, made.get())) return *made.release();
  return *present.load();
}

}  // namespace

WriteWatch::WriteWatch(std::unique_ptr<Watched> watched) : watched_(std::move(watched)) {}

std::unique_ptr<WriteWatch> WriteWatch::of(uintptr_t address, size_t size) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto watched = std::make_unique<Watched>();
  watched->begin = (address + page - 1) / page * page;
  watched->end = (address + size) / page * page;
  if (watched->begin >= watched->end || !watches().add(*watched)) return nullptr;
  return std::unique_ptr<WriteWatch>(new WriteWatch(std::move(watched)));
}

WriteWatch::~WriteWatch() {
  if (watched_->process == getpid()) watches().remove(*watched_);
}

WriteWatch::Seen WriteWatch::look() {
  Watches& own = watches();
  if (watched_->process == own.process()) return own.look(*watched_);
  if (watched_->is_known) watched_->is_known = own.add(*watched_);
  return Seen::unknown;
}

uintptr_t WriteWatch::begin() const {
  return watched_->begin;
}

uintptr_t WriteWatch::end() const {
  return watched_->end;
}

}  // namespace foreload
