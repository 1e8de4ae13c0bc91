#include "spill.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace foreload {

struct Spill::Head {
  uint32_t magic, form;
  uint64_t sample, size;
  Blake2::Tag own;    // of what is above
  Blake2::Tag bytes;  // of what is above, and of the bytes
};

namespace {

constexpr uint32_t kMagic = 0x4C495053;  // "SPIL"

// A place: the number of the file in the upper bits, the offset of the record + 1 in the lower ones.
constexpr int kOffsetBits = 48;
constexpr uint32_t kMaxFiles = 1 << 16;
constexpr int32_t kChecks = 8;  // records of earlier runs that are compared before others are used
constexpr int kRejected = -1, kFailed = -2;  // in place of a descriptor
constexpr uint64_t place_of(uint32_t number, uint64_t offset) {
  return (uint64_t{number} << kOffsetBits) | (offset + 1);
}

std::string name_of(uint32_t number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%05u.spill", number);
  return text;
}

bool read_all(int file, void* to, size_t size, uint64_t offset) {
  auto* at = static_cast<uint8_t*>(to);
  while (size > 0) {
    const ssize_t got = pread(file, at, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return true;
}

// Returns 0, or the errno of the failure.
int write_all(int file, const uint8_t* from, size_t size, uint64_t offset) {
  while (size > 0) {
    const ssize_t done = pwrite(file, from, size, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return done < 0 ? errno : ENOSPC;
    from += done;
    offset += static_cast<uint64_t>(done);
    size -= static_cast<size_t>(done);
  }
  return 0;
}

// Guards the open files of all spills. A fork waits for it: in the child, nobody else would ever release it.
std::mutex opening;
[[maybe_unused]] const int kWaitsForForks =
    pthread_atfork([] { opening.lock(); }, [] { opening.unlock(); }, [] { opening.unlock(); });

}  // namespace

Spill::Spill(int folder, const Blake2::Key& key, std::atomic<uint64_t>* places, size_t samples,
             Counts* counts)
    : folder_(fcntl(folder, F_DUPFD_CLOEXEC, 0)),
      key_(key),
      places_(places),
      samples_(samples),
      counts_(counts) {}

Spill::~Spill() {
  for (const auto& [number, file] : open_) {
    if (file >= 0) close(file);
  }
  if (own_ >= 0) close(own_);
  if (folder_ >= 0) close(folder_);
}

// The sample is part of both tags, so that a record never passes for another sample's.
Blake2::Tag Spill::tag_of_head(const Head& head) const {
  return Blake2(key_).add({reinterpret_cast<const uint8_t*>(&head), offsetof(Head, own)}).tag();
}

Blake2::Tag Spill::tag_of_bytes(const Head& head, std::span<const uint8_t> bytes) const {
  return Blake2(key_).add({reinterpret_cast<const uint8_t*>(&head), offsetof(Head, bytes)}).add(bytes).tag();
}

size_t Spill::scan() {
  std::vector<uint32_t> numbers;
  const int listed = openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (DIR* const folder = listed >= 0 ? fdopendir(listed) : nullptr) {
    while (const dirent* const entry = readdir(folder)) {
      unsigned number = 0;
      if (std::sscanf(entry->d_name, "%5u.", &number) == 1 && entry->d_name == name_of(number)) {
        numbers.push_back(number);
      }
    }
    closedir(folder);
  }
  std::sort(numbers.begin(), numbers.end());
  size_t found = 0;
  for (const uint32_t number : numbers) {
    if (number < kMaxFiles) counts_->files.store(number + 1);
    found += scan_file(number);
  }
  counts_->own.store(counts_->files.load());
  counts_->unchecked.store(found > 0 ? kChecks : 0);
  return found;
}

bool Spill::needs_check(size_t sample) const {
  return counts_->unchecked.load() > 0 && places_[sample].load() >> kOffsetBits < counts_->own.load();
}

void Spill::note_check(size_t sample, bool is_same) {
  if (is_same) {
    counts_->unchecked.fetch_sub(1);  // those that several threads compare at once may make it negative
    return;
  }
  uint64_t none = 0;
  counts_->wrong.compare_exchange_strong(none, sample + 1);
}

size_t Spill::scan_file(uint32_t number) {
  const int file = number < kMaxFiles ? file_for_reading(number) : kRejected;
  struct stat about{};
  if (file == kFailed || (file >= 0 && fstat(file, &about) != 0)) return 0;
  const auto end = static_cast<uint64_t>(about.st_size);
  bool is_rejected = file == kRejected;
  size_t found = 0;
  Head head;
  // A process that was killed leaves a record that is cut off, and a hole where another thread was to write.
  for (uint64_t at = 0; at + sizeof(head) <= end;) {
    if (!read_all(file, &head, sizeof(head), at)) return found;
    if (!same(head.own, tag_of_head(head)) || head.magic != kMagic || head.sample >= samples_) {
      const auto* const bytes = reinterpret_cast<const uint8_t*>(&head);
      is_rejected = std::any_of(bytes, bytes + sizeof(head), [](uint8_t byte) { return byte != 0; });
      break;
    }
    if (head.size > end - at - sizeof(head)) break;
    places_[head.sample].store(place_of(number, at));
    at += sizeof(head) + head.size;
    ++found;
  }
  if (is_rejected) counts_->rejected.fetch_add(1);
  if (found == 0) unlinkat(folder_, name_of(number).c_str(), 0);
  return found;
}

// Returns kRejected for what is no file of this user's (a link is not followed, nor a pipe waited for), and
// kFailed if it cannot be opened now, as with too many open files.
int Spill::file_for_reading(uint32_t number) {
  const std::lock_guard lock(opening);
  if (const auto known = open_.find(number); known != open_.end()) return known->second;
  const int file =
      openat(folder_, name_of(number).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (file < 0 && errno != ELOOP && errno != ENXIO && errno != ENOENT) return kFailed;
  struct stat about{};
  if (file >= 0 && (fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != geteuid())) {
    close(file);
    return open_[number] = kRejected;
  }
  return open_[number] = file < 0 ? kRejected : file;
}

// Under the lock. A forked process writes to a file of its own.
int Spill::file_for_writing() {
  if (own_ >= 0 && owner_ == getpid()) return own_;
  if (own_ >= 0) close(own_);
  owner_ = getpid();
  end_ = 0;
  do {
    own_number_ = counts_->files.fetch_add(1);
    if (own_number_ >= kMaxFiles) {
      own_ = -1;
      errno = EMFILE;
      break;
    }
    own_ = openat(folder_, name_of(own_number_).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                  0600);
  } while (own_ < 0 && errno == EEXIST);
  return own_;
}

bool Spill::write(size_t sample, uint32_t form, std::span<const std::span<const uint8_t>> parts) {
  if (failure_.load() != 0 || counts_->wrong.load() != 0) return false;
  if (places_[sample].load() != 0) return true;
  std::vector<uint8_t> record(sizeof(Head));
  for (const auto& part : parts) record.insert(record.end(), part.begin(), part.end());
  Head head{kMagic, form, sample, record.size() - sizeof(Head), {}, {}};
  head.own = tag_of_head(head);
  head.bytes = tag_of_bytes(head, std::span(record).subspan(sizeof(Head)));
  std::memcpy(record.data(), &head, sizeof(head));
  int file = -1;
  uint32_t number = 0;
  uint64_t offset = 0;
  {
    const std::lock_guard lock(opening);
    file = file_for_writing();
    if (file < 0) {
      failure_ = errno;
      return false;
    }
    number = own_number_;
    offset = end_;
    end_ += record.size();
  }
  if (const int code = write_all(file, record.data(), record.size(), offset)) {
    failure_ = code;
    return false;
  }
  places_[sample].store(place_of(number, offset));
  return true;
}

bool Spill::read_at(int file, uint64_t offset, size_t sample, std::vector<uint8_t>& buffer, Head& head) {
  if (file < 0 || !read_all(file, &head, sizeof(head), offset) || !same(head.own, tag_of_head(head)) ||
      head.magic != kMagic || head.sample != sample) {
    return false;
  }
  struct stat about{};
  if (fstat(file, &about) != 0 || head.size > static_cast<uint64_t>(about.st_size)) return false;
  if (buffer.size() < head.size) buffer.resize(head.size);
  return read_all(file, buffer.data(), head.size, offset + sizeof(head)) &&
         same(head.bytes, tag_of_bytes(head, {buffer.data(), head.size}));
}

bool Spill::read(size_t sample, std::vector<uint8_t>& buffer, size_t& size, uint32_t& form) {
  uint64_t place = places_[sample].load();
  if (place == 0 || counts_->wrong.load() != 0) return false;
  const int file = file_for_reading(static_cast<uint32_t>(place >> kOffsetBits));
  if (file == kFailed) return false;
  const uint64_t offset = (place & ((uint64_t{1} << kOffsetBits) - 1)) - 1;
  Head head;
  if (read_at(file, offset, sample, buffer, head)) {
    size = head.size;
    form = head.form;
    return true;
  }
  // It is written anew.
  if (places_[sample].compare_exchange_strong(place, 0)) counts_->rejected.fetch_add(1);
  return false;
}

}  // namespace foreload
