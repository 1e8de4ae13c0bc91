#include "ring.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "error.hpp"

namespace foreload {

namespace {

[[noreturn]] void fail(const char* what) {
  const int code = errno;
  throw Error(ErrorKind::system, std::string(what) + ": " + std::strerror(code), "io_uring", code);
}

int setup(unsigned entries, io_uring_params& about, uint32_t flags) {
  about = {};
  about.flags = flags;
  return static_cast<int>(::syscall(__NR_io_uring_setup, entries, &about));
}

}  // namespace

void Ring::Map::open(int fd, size_t bytes, uint64_t offset) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                              static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) fail("mmap");
  // A forked child must not touch the parent's reads.
  ::madvise(mapped, bytes, MADV_DONTFORK);
  memory = static_cast<uint8_t*>(mapped);
  size = bytes;
}

Ring::Map::~Map() {
  if (memory != nullptr) ::munmap(memory, size);
}

Ring::Ring(unsigned entries) {
  // Completions need not interrupt the thread: it polls for them.
  fd_ = setup(entries, about_, IORING_SETUP_COOP_TASKRUN);
  if (fd_ < 0 && errno == EINVAL) fd_ = setup(entries, about_, 0);
  if (fd_ < 0) fail("io_uring_setup");
  // Before Linux 5.6, which has this, it can neither open files nor read into any memory.
  if ((about_.features & IORING_FEAT_RW_CUR_POS) == 0) {
    ::close(fd_);
    errno = ENOSYS;
    fail("io_uring_setup");
  }
  try {
    queue_.open(fd_, about_.sq_off.array + about_.sq_entries * sizeof(uint32_t), IORING_OFF_SQ_RING);
    completions_.open(fd_, about_.cq_off.cqes + about_.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    entries_.open(fd_, about_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

Ring::~Ring() {
  ::close(fd_);
}

io_uring_sqe& Ring::prepare(uint8_t operation, uint64_t user_data) {
  const uint32_t mask = *in<uint32_t>(queue_, about_.sq_off.ring_mask);
  const uint32_t tail = *in<uint32_t>(queue_, about_.sq_off.tail) + prepared_++;
  in<uint32_t>(queue_, about_.sq_off.array)[tail & mask] = tail & mask;
  io_uring_sqe& entry = in<io_uring_sqe>(entries_, 0)[tail & mask];
  entry = {};
  entry.opcode = operation;
  entry.user_data = user_data;
  return entry;
}

void Ring::submit(unsigned least) {
  std::atomic_ref<uint32_t> tail(*in<uint32_t>(queue_, about_.sq_off.tail));
  tail.store(tail.load(std::memory_order_relaxed) + prepared_, std::memory_order_release);
  while (prepared_ > 0 || least > 0) {
    const long taken = ::syscall(__NR_io_uring_enter, fd_, prepared_, least,
                                 least > 0 ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
    // Refused for the moment: reads that are under way must be waited for in any case.
    if (taken < 0) continue;
    prepared_ -= static_cast<unsigned>(taken);
    // What was submitted has been waited for in the same call.
    if (prepared_ == 0) return;
  }
}

bool Ring::take(io_uring_cqe& ended) {
  std::atomic_ref<uint32_t> head(*in<uint32_t>(completions_, about_.cq_off.head));
  std::atomic_ref<uint32_t> tail(*in<uint32_t>(completions_, about_.cq_off.tail));
  const uint32_t at = head.load(std::memory_order_relaxed);
  if (at == tail.load(std::memory_order_acquire)) return false;
  const uint32_t mask = *in<uint32_t>(completions_, about_.cq_off.ring_mask);
  ended = in<io_uring_cqe>(completions_, about_.cq_off.cqes)[at & mask];
  head.store(at + 1, std::memory_order_release);
  return true;
}

bool Ring::register_buffers(std::span<const iovec> buffers) {
  return ::syscall(__NR_io_uring_register, fd_, IORING_REGISTER_BUFFERS, buffers.data(),
                   static_cast<unsigned>(buffers.size())) == 0;
}

}  // namespace foreload
