// Writes are seen by every watch over their page, once each, and by those of the process that writes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "writes.hpp"

using foreload::WriteWatch;
using Seen = WriteWatch::Seen;

constexpr size_t kPage = 4096;

namespace {

unsigned char* map(size_t size, int flags = MAP_PRIVATE) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return static_cast<unsigned char*>(memory);
}

std::unique_ptr<WriteWatch> watch(unsigned char* memory, size_t size) {
  return WriteWatch::of(reinterpret_cast<uintptr_t>(memory), size);
}

// Random writes and looks against what each watch should have seen.
void against_an_oracle() {
  constexpr size_t kSize = 64 * kPage;
  std::mt19937 random(7);
  unsigned char* memory = map(kSize);
  struct Case {
    std::unique_ptr<WriteWatch> watch;
    bool is_written;
  };
  std::vector<Case> cases;
  for (int step = 0; step < 20000; ++step) {
    const size_t place = random() % kSize;
    switch (random() % 4) {
      case 0:
        memory[place] = static_cast<unsigned char>(random());
        for (Case& each : cases) {
          const auto address = reinterpret_cast<uintptr_t>(memory + place);
          each.is_written |= each.watch->begin() <= address && address < each.watch->end();
        }
        break;
      case 1:
        if (cases.size() < 12) {
          const size_t size = kPage * 2 + random() % (kSize - kPage * 2);
          if (place + size > kSize) break;
          cases.push_back({watch(memory + place, size), false});
          CHECK(cases.back().watch != nullptr);
        } else {
          cases.erase(cases.begin() + static_cast<long>(random() % cases.size()));
        }
        break;
      default:
        if (cases.empty()) break;
        Case& each = cases[random() % cases.size()];
        CHECK(each.watch->look() == (each.is_written ? Seen::write : Seen::nothing));
        each.is_written = false;
    }
  }
  cases.clear();
  munmap(memory, kSize);
}

void by_the_system() {
  unsigned char* memory = map(4 * kPage);
  const auto own = watch(memory, 4 * kPage);
  CHECK(own->look() == Seen::nothing);
  const int file = open("/dev/zero", O_RDONLY);
  CHECK(read(file, memory + kPage, 10) == 10);
  close(file);
  CHECK(own->look() == Seen::write && own->look() == Seen::nothing);
}

void in_forks() {
  unsigned char* memory = map(4 * kPage);
  const auto own = watch(memory, 4 * kPage);
  memory[5] = 1;
  const pid_t child = fork();
  if (child == 0) {
    bool is_right = own->look() == Seen::unknown && own->look() == Seen::nothing;
    memory[9] = 1;
    is_right = is_right && own->look() == Seen::write && own->look() == Seen::nothing;
    _exit(is_right ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(own->look() == Seen::write && own->look() == Seen::nothing);  // its own write, not the child's
}

void by_threads() {
  constexpr size_t kSize = 256 * kPage;
  unsigned char* memory = map(kSize);
  const auto own = watch(memory, kSize), other = watch(memory + kPage, kSize / 2);
  std::vector<std::thread> threads;
  for (size_t number = 0; number < 4; ++number) {
    threads.emplace_back([=] {
      for (size_t page = number; page < 256; page += 4) memory[page * kPage] = 1;
    });
  }
  bool has_seen = false;
  for (int step = 0; step < 100; ++step) has_seen |= own->look() == Seen::write;
  for (std::thread& thread : threads) thread.join();
  has_seen |= own->look() == Seen::write;
  CHECK(has_seen && other->look() == Seen::write);
  CHECK(own->look() == Seen::nothing && other->look() == Seen::nothing);
}

void not_where_others_write() {
  unsigned char* shared = map(2 * kPage, MAP_SHARED);
  CHECK(watch(shared, 2 * kPage) == nullptr);
  const int file = open("/proc/self/exe", O_RDONLY);
  void* mapped = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, file, 0);
  CHECK(watch(static_cast<unsigned char*>(mapped), kPage) == nullptr);
  unsigned char* memory = map(600 * kPage);
  CHECK(watch(memory + 1, kPage) == nullptr);  // not a whole page
  std::vector<std::unique_ptr<WriteWatch>> many;
  for (size_t place = 0; place < 600; ++place) many.push_back(watch(memory + place * kPage, kPage));
  CHECK(many.front() != nullptr && many.back() == nullptr);
  void* other = mmap(memory, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(other == memory && many.front()->look() == Seen::unknown);  // it is other memory now
}

}  // namespace

int main() {
  unsigned char* memory = map(kPage);
  if (watch(memory, kPage) == nullptr) {
    std::puts("this system does not tell who writes to memory");
    return 0;
  }
  against_an_oracle();
  by_the_system();
  in_forks();
  by_threads();
  not_where_others_write();
}
