#include "direct.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>

#include "files.hpp"
#include "read.hpp"

namespace foreload {

namespace {

// Whether the page cache holds the first block of a file. A system that does not say so says that it does.
bool is_resident(int fd) {
  void* const block = ::mmap(nullptr, kDirectBlock, PROT_READ, MAP_SHARED, fd, 0);
  if (block == MAP_FAILED) return true;
  unsigned char pages[kDirectBlock / 4096] = {1};
  const bool resident = ::mincore(block, kDirectBlock, pages) != 0 || (pages[0] & 1) != 0;
  ::munmap(block, kDirectBlock);
  return resident;
}

}  // namespace

void AlignedBuffer::Free::operator()(uint8_t* memory) const {
  std::free(memory);
}

void AlignedBuffer::reserve(size_t size) {
  if (size <= size_) return;
  size = whole_blocks(size + size / 4);
  std::unique_ptr<uint8_t, Free> larger(static_cast<uint8_t*>(std::aligned_alloc(kDirectBlock, size)));
  if (!larger) throw std::bad_alloc();
  memory_ = std::move(larger);
  size_ = size;
}

std::string direct_problem(const std::string& path) {
  const std::string refused = "its file system has no O_DIRECT";
  const Descriptor fd(::open(path.c_str(), open_flags(true)));
  if (fd < 0) return errno == EINVAL ? refused : "";
  struct statfs system;
  if (::fstatfs(fd, &system) == 0) {
    const auto kind = static_cast<unsigned long>(system.f_type);
    // These take O_DIRECT since Linux 6.6.
    if (kind == TMPFS_MAGIC || kind == RAMFS_MAGIC) return "its file system is memory (tmpfs)";
  }
  let_reads_wait(fd);
  const bool before = is_resident(fd);
  AlignedBuffer block;
  block.reserve(kDirectBlock);
  if (::pread(fd, block.data(), kDirectBlock, 0) < 0) return errno == EINVAL ? refused : "";
  return !before && is_resident(fd) ? "its file system takes O_DIRECT, but does not heed it" : "";
}

}  // namespace foreload
