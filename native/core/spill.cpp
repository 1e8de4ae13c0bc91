#include "spill.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "checksum.hpp"

namespace foreload {

namespace {

struct Head {
  uint32_t magic, form;
  uint64_t sample, size, sum;
};
constexpr uint32_t kMagic = 0x4C495053;  // "SPIL"

// A place: the number of the file in the upper bits, the offset of the record + 1 in the lower ones.
constexpr int kOffsetBits = 48;
constexpr uint64_t place_of(uint32_t number, uint64_t offset) {
  return (uint64_t{number} << kOffsetBits) | (offset + 1);
}

// The header is part of the checksum, so that a record never passes for another sample's.
uint64_t sum_of(const Head& head, std::span<const uint8_t> bytes) {
  return checksum(bytes, head.sample * 0x9E3779B97F4A7C15 + head.size * 4 + head.form);
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

}  // namespace

Spill::Spill(std::string folder, std::atomic<uint64_t>* places, size_t samples, std::atomic<uint32_t>* files)
    : folder_(std::move(folder)), places_(places), samples_(samples), files_(files) {}

Spill::~Spill() {
  for (const auto& [number, file] : open_) close(file);
  if (own_ >= 0) close(own_);
}

std::string Spill::name(uint32_t number) const {
  char text[32];
  std::snprintf(text, sizeof(text), "/%05u.spill", number);
  return folder_ + text;
}

size_t Spill::scan() {
  std::vector<uint32_t> numbers;
  if (DIR* const folder = opendir(folder_.c_str())) {
    while (const dirent* const entry = readdir(folder)) {
      unsigned number = 0;
      char rest[8] = {};
      if (std::sscanf(entry->d_name, "%5u.%5s", &number, rest) == 2 && std::string(rest) == "spill") {
        numbers.push_back(number);
      }
    }
    closedir(folder);
  }
  std::sort(numbers.begin(), numbers.end());
  if (!numbers.empty()) files_->store(numbers.back() + 1);
  size_t found = 0;
  for (const uint32_t number : numbers) found += scan_file(number);
  return found;
}

size_t Spill::scan_file(uint32_t number) {
  const int file = file_for_reading(number);
  struct stat about{};
  if (file < 0 || fstat(file, &about) != 0) return 0;
  const auto end = static_cast<uint64_t>(about.st_size);
  size_t found = 0;
  Head head;
  for (uint64_t at = 0; at + sizeof(head) <= end && read_all(file, &head, sizeof(head), at);) {
    if (head.magic != kMagic || head.sample >= samples_ || head.size > end - at - sizeof(head)) break;
    places_[head.sample].store(place_of(number, at));
    at += sizeof(head) + head.size;
    ++found;
  }
  return found;
}

int Spill::file_for_reading(uint32_t number) {
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = open_.try_emplace(number, -1);
  if (added) entry->second = open(name(number).c_str(), O_RDONLY | O_CLOEXEC);
  return entry->second;
}

// Under the lock. A forked process writes to a file of its own.
int Spill::file_for_writing() {
  if (own_ >= 0 && owner_ == getpid()) return own_;
  if (own_ >= 0) close(own_);
  owner_ = getpid();
  end_ = 0;
  own_number_ = files_->fetch_add(1);
  own_ = open(name(own_number_).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  return own_;
}

bool Spill::write(size_t sample, uint32_t form, std::span<const std::span<const uint8_t>> parts) {
  if (failure_.load() != 0) return false;
  if (places_[sample].load() != 0) return true;
  std::vector<uint8_t> record(sizeof(Head));
  for (const auto& part : parts) record.insert(record.end(), part.begin(), part.end());
  Head head{kMagic, form, sample, record.size() - sizeof(Head), 0};
  head.sum = sum_of(head, std::span(record).subspan(sizeof(Head)));
  std::memcpy(record.data(), &head, sizeof(head));
  int file = -1;
  uint32_t number = 0;
  uint64_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
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

bool Spill::read(size_t sample, std::vector<uint8_t>& buffer, size_t& size, uint32_t& form) {
  uint64_t place = places_[sample].load();
  if (place == 0) return false;
  const int file = file_for_reading(static_cast<uint32_t>(place >> kOffsetBits));
  const uint64_t offset = (place & ((uint64_t{1} << kOffsetBits) - 1)) - 1;
  Head head;
  if (file >= 0 && read_all(file, &head, sizeof(head), offset) && head.magic == kMagic &&
      head.sample == sample) {
    struct stat about{};
    if (fstat(file, &about) == 0 && head.size <= static_cast<uint64_t>(about.st_size)) {
      if (buffer.size() < head.size) buffer.resize(head.size);
      if (read_all(file, buffer.data(), head.size, offset + sizeof(head)) &&
          sum_of(head, {buffer.data(), head.size}) == head.sum) {
        size = head.size;
        form = head.form;
        return true;
      }
    }
  }
  places_[sample].compare_exchange_strong(place, 0);  // damaged: it is written anew
  return false;
}

}  // namespace foreload
