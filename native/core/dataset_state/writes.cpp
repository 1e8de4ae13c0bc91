#include "writes.hpp"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
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

// The pages of a watch, of which all but these belongs to the watches of one process, under their lock.
struct Watched {
  uintptr_t begin = 0, end = 0;
  uint64_t process = 0;
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

// Tells a process from the one that it was forked from, which in a namespace of its own may have had the same
// number.
uint64_t this_process() {
  static std::atomic<uint64_t> forks{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)registered;
  return forks.load() << 32 | static_cast<uint32_t>(getpid());
}

// All watches of a process. What one of them finds is noted for the others too, since finding protects pages
// anew.
class Watches {
 public:
  Watches() : process_(this_process()) {
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

  uint64_t process() const { return process_; }

  bool add(Watched& watched) {
    const std::lock_guard lock(mutex_);
    return begin(watched);
  }

  void remove(Watched& watched) {
    const std::lock_guard lock(mutex_);
    const auto place = std::find(watches_.begin(), watches_.end(), &watched);
    if (place == watches_.end()) return;  // it is of the process that this one was forked from
    watches_.erase(place);
    release(watched);
  }

  WriteWatch::Seen look(Watched& watched) {
    const std::lock_guard lock(mutex_);
    if (watched.process != process_) {
      watched.is_known = watched.is_known && begin(watched);
      return WriteWatch::Seen::unknown;
    }
    watched.is_known = watched.is_known && scan(watched);
    if (!watched.is_known) return WriteWatch::Seen::unknown;
    const bool is_written = std::exchange(watched.is_written, false);
    return is_written ? WriteWatch::Seen::write : WriteWatch::Seen::nothing;
  }

 private:
  bool begin(Watched& watched) {
    if (!is_there_ || watches_.size() >= kMostWatches || !is_private(watched)) return false;
    uffdio_register range{};
    range.range = {watched.begin, watched.end - watched.begin};
    range.mode = UFFDIO_REGISTER_MODE_WP;
    if (ioctl(faults_, UFFDIO_REGISTER, &range) != 0) return false;
    if (!scan(watched)) {
      release(watched);
      return false;
    }
    watches_.push_back(&watched);
    watched.process = process_;
    watched.is_written = false;
    return true;
  }

  // Lets go of the pages that no other watch is over.
  void release(const Watched& watched) {
    std::vector<std::pair<uintptr_t, uintptr_t>> others;
    for (const Watched* other : watches_) {
      if (other->begin < watched.end && watched.begin < other->end) {
        others.emplace_back(other->begin, other->end);
      }
    }
    std::sort(others.begin(), others.end());
    others.emplace_back(watched.end, watched.end);
    uintptr_t at = watched.begin;
    for (const auto& [begin, end] : others) {
      uffdio_range range{at, begin - at};
      if (begin > at) ioctl(faults_, UFFDIO_UNREGISTER, &range);  // it fails if the memory is gone
      at = std::max(at, end);
    }
  }

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
      if (found < 0 || scan.walk_end <= scan.begin) {
        note({scan.begin, watched.end, 0});  // what it has protected before it failed, it does not say
        return false;
      }
      for (int place = 0; place < found; ++place) note(regions[static_cast<size_t>(place)]);
    }
    return true;
  }

  void note(const Region& region) {
    for (Watched* watched : watches_) {
      if (watched->is_written) continue;
      watched->is_written = watched->begin < region.end && region.begin < watched->end;
    }
  }

  // Whether all of it is this process's alone, and of no file or device.
  bool is_private(const Watched& watched) const {
    for (uintptr_t at = watched.begin; at < watched.end;) {
      Mapping mapping{};
      mapping.size = sizeof mapping;
      mapping.address = at;
      if (ioctl(mappings_, kQueryMapping, &mapping) != 0) return false;
      if ((mapping.flags & kIsShared) != 0) return false;
      if (mapping.inode != 0 || mapping.major != 0 || mapping.minor != 0) return false;
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
  const uint64_t process_;
  int pages_ = -1, mappings_ = -1, faults_ = -1;
  bool is_there_ = false;
  std::vector<Watched*> watches_;
};

// Those of this process. A fork leaves its parent's alone, whose lock another thread may have held.
Watches& watches() {
  static std::atomic<Watches*> present{nullptr};
  Watches* known = present.load();
  if (known != nullptr && known->process() == this_process()) return *known;
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
  watches().remove(*watched_);
}

WriteWatch::Seen WriteWatch::look() {
  return watches().look(*watched_);
}

uintptr_t WriteWatch::begin() const {
  return watched_->begin;
}

uintptr_t WriteWatch::end() const {
  return watched_->end;
}

}  // namespace foreload
