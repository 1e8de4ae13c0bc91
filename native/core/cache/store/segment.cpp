#include "segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "error.hpp"

namespace foreload {

namespace {

#ifndef MAP_NORESERVE
constexpr int MAP_NORESERVE = 0;
#endif

int anonymous_file([[maybe_unused]] size_t bytes) {
#ifdef __linux__
  const int file = memfd_create("foreload", MFD_CLOEXEC);
  if (file < 0) return -1;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) return file;
  close(file);
#endif
  return -1;
}

}  // namespace

std::unique_ptr<Segment> Segment::create(size_t bytes) {
  int file = anonymous_file(bytes);
  const auto map = [&] {
    const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_NORESERVE;
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  };
  void* memory = map();
  if (memory == MAP_FAILED && file >= 0) {
    close(file);
    file = -1;
    memory = map();
  }
  if (memory == MAP_FAILED) {
    throw Error(ErrorKind::system,
                "no memory for a cache of " + std::to_string(bytes) + " bytes; set a smaller budget", {},
                errno);
  }
  return std::unique_ptr<Segment>(new Segment(file, static_cast<uint8_t*>(memory), bytes));
}

std::unique_ptr<Segment> Segment::open(int file) {
  const int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
  struct stat about{};
  if (own < 0 || fstat(own, &about) != 0) {
    const int code = errno;
    if (own >= 0) close(own);
    throw Error(ErrorKind::system, "the cache's shared memory is gone", {}, code);
  }
  const auto bytes = static_cast<size_t>(about.st_size);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, own, 0);
  if (memory == MAP_FAILED) {
    const int code = errno;
    close(own);
    throw Error(ErrorKind::system, "the cache's shared memory cannot be mapped", {}, code);
  }
  return std::unique_ptr<Segment>(new Segment(own, static_cast<uint8_t*>(memory), bytes));
}

Segment::~Segment() {
  munmap(memory_, size_);
  if (file_ >= 0) close(file_);
}

void Segment::discard(uint8_t* part, size_t size) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(part) + size) / kPage * kPage;
  if (end <= begin) return;
#ifdef MADV_REMOVE
  madvise(reinterpret_cast<void*>(begin), end - begin, file_ >= 0 ? MADV_REMOVE : MADV_DONTNEED);
#endif
}

Mapping::Mapping(int file, size_t offset, size_t size) : memory_(nullptr), size_(size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    throw Error(ErrorKind::system,
                "memory for a batch of " + std::to_string(size) + " bytes cannot be mapped", {}, errno);
  }
  memory_ = static_cast<uint8_t*>(memory);
}

Mapping::~Mapping() {
  munmap(memory_, size_);
}

}  // namespace foreload
