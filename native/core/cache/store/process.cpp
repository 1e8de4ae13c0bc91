#include "process.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace foreload {

namespace {

constexpr long kMaxSleep = 20'000'000;  // nanoseconds

constexpr size_t kSignalStack = 1 << 20;  // of which memory is taken as it is used

}  // namespace

uint64_t this_process() {
  return static_cast<uint64_t>(getpid());
}

bool is_alive(uint64_t process) {
  if (process == this_process()) return true;
  if (kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return false;
#ifdef __linux__
  char name[32];
  std::snprintf(name, sizeof(name), "/proc/%llu/stat", static_cast<unsigned long long>(process));
  std::FILE* const file = std::fopen(name, "re");
  if (file == nullptr) return true;
  char state = 'R';
  // The name in brackets may itself hold brackets; Linux cuts it at 15 bytes.
  char line[256] = {};
  if (std::fgets(line, sizeof(line), file) != nullptr) {
    const std::string text(line);
    const size_t end = text.rfind(')');
    if (end != std::string::npos && end + 2 < text.size()) state = text[end + 2];
  }
  std::fclose(file);
  return state != 'Z' && state != 'X';
#else
  return true;
#endif
}

void end_with(uint64_t process, int pipe) {
  int watched = -1;
#ifdef SYS_pidfd_open
  watched = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0));
  if (watched < 0 && errno == ESRCH) _exit(1);
#endif
  std::thread([watched, pipe] {
    pollfd files[] = {{watched, POLLIN, 0}, {pipe, 0, 0}};
    while (poll(files, 2, -1) < 0 && errno == EINTR) {
    }
    _exit(1);
  }).detach();
}

void widen_signal_stack() {
  // Below it is a page that nobody can write to.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), size = kSignalStack + page;
  void* const memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;  // it has the one that it had
  stack_t stack{};
  stack.ss_sp = static_cast<char*>(memory) + page;
  stack.ss_size = kSignalStack;
  if (mprotect(stack.ss_sp, kSignalStack, PROT_READ | PROT_WRITE) != 0 || sigaltstack(&stack, nullptr) != 0) {
    munmap(memory, size);
  }
}

void sleep_on(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec timeout{0, kMaxSleep};
#ifdef __linux__
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
#else
  (void)word, (void)seen;
  nanosleep(&timeout, nullptr);
#endif
}

void wake_all([[maybe_unused]] std::atomic<uint32_t>& word) {
#ifdef __linux__
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

void release_freed() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void reuse_freed() {
  // Its thresholds rise to what was freed last, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD), unless they were
  // set by the program. Nothing is written here, so no memory is taken.
  void* volatile block = std::malloc((size_t{32} << 20) - (size_t{64} << 10));
  std::free(block);
}

}  // namespace foreload
