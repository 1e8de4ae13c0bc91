// Measures what a plain loop of system calls reads from this machine's file system.
//   plain_read files DIR THREADS       files per second: open, read into a row, close; shuffled
//   plain_read random FILE SIZE THREADS [ROUNDS]   reads per second of SIZE bytes at random places, O_DIRECT
//   plain_read sequential FOLDER THREADS   bytes per second, file by file, 1 MiB at a time, O_DIRECT
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

double timed(unsigned threads, const std::function<void(unsigned)>& work) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; ++i) all.emplace_back(work, i);
  for (auto& thread : all) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int open_direct(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_DIRECT);
  if (fd < 0) std::perror(path), std::exit(1);
  return fd;
}

std::vector<std::string> files_in(const char* folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

double files(const char* folder, unsigned threads) {
  std::vector<std::string> paths = files_in(folder);
  std::shuffle(paths.begin(), paths.end(), std::mt19937(1));
  const auto row = static_cast<size_t>(std::filesystem::file_size(paths.front()));
  std::vector<unsigned char> batch(256 * row);
  std::atomic<size_t> next{0};
  const double seconds = timed(threads, [&](unsigned) {
    for (size_t i = next.fetch_add(32); i < paths.size(); i = next.fetch_add(32)) {
      for (size_t k = i; k < std::min(i + 32, paths.size()); ++k) {
        const int fd = ::open(paths[k].c_str(), O_RDONLY);
        if (fd < 0 || ::read(fd, batch.data() + k % 256 * row, row) != static_cast<ssize_t>(row))
          std::abort();
        ::close(fd);
      }
    }
  });
  return static_cast<double>(paths.size()) / seconds;
}

double random_reads(const char* file, size_t size, unsigned threads, size_t rounds) {
  const int fd = open_direct(file);
  const size_t places = std::filesystem::file_size(file) / size;
  const double seconds = timed(threads, [&](unsigned thread) {
    std::mt19937_64 random(thread + 1);
    void* const memory = std::aligned_alloc(4096, size);
    for (size_t i = 0; i < rounds; ++i) {
      const auto at = static_cast<off_t>(random() % places * size);
      if (::pread(fd, memory, size, at) != static_cast<ssize_t>(size)) std::abort();
    }
    std::free(memory);
  });
  return static_cast<double>(rounds * threads) / seconds;
}

double sequential(const char* folder, unsigned threads) {
  constexpr size_t kStep = 1 << 20;
  std::vector<std::pair<int, off_t>> steps;
  for (const std::string& path : files_in(folder)) {
    const int fd = open_direct(path.c_str());
    const auto size = static_cast<size_t>(std::filesystem::file_size(path));
    for (size_t at = 0; at + kStep <= size; at += kStep) steps.emplace_back(fd, static_cast<off_t>(at));
  }
  std::atomic<size_t> next{0};
  const double seconds = timed(threads, [&](unsigned) {
    // Contiguous memory splits a read into fewer segments.
    constexpr size_t kHuge = 2 << 20;
    void* const memory = std::aligned_alloc(kHuge, kHuge);
    ::madvise(memory, kHuge, MADV_HUGEPAGE);
    for (size_t i = next.fetch_add(1); i < steps.size(); i = next.fetch_add(1)) {
      if (::pread(steps[i].first, memory, kStep, steps[i].second) < 0) std::abort();
    }
    std::free(memory);
  });
  return static_cast<double>(steps.size() * kStep) / seconds;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const std::string mode = arguments[1];
  const auto number = [&](int i) { return static_cast<unsigned>(std::atoi(arguments[i])); };
  double rate = 0;
  if (mode == "files") rate = files(arguments[2], number(3));
  if (mode == "random") rate = random_reads(arguments[2], number(3), number(4), count > 5 ? number(5) : 200);
  if (mode == "sequential") rate = sequential(arguments[2], number(3));
  std::printf("%.1f\n", rate);
}
