// Every reader reads what an ifstream reads, of files and of extents in shards, and fails as the others do.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <thread>

#include "reads.hpp"

namespace {

void whole_files(const Folder& folder) {
  std::vector<std::string> paths;
  for (const size_t size :
       {0, 1, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 81920, 262144, (1 << 20) + 3}) {
    paths.push_back(made(folder / ("whole" + std::to_string(size)), size));
  }
  std::vector<Bytes> contents;
  for (const auto& path : paths) contents.push_back(by_stream(path));
  for (auto& reader : readers()) {
    for (const size_t keep : {size_t{0}, paths.size() / 2}) {
      Files files(paths, keep);
      for (const size_t count : {size_t{0}, size_t{1}, size_t{kDepth}, 5 * size_t{kDepth} + 3}) {
        std::vector<size_t> samples;
        std::vector<Bytes> expected;
        for (size_t i = 0; i < count; ++i) samples.push_back(below(paths.size()));
        for (const size_t sample : samples) expected.push_back(contents[sample]);
        expect(outcomes(*reader, files, samples), expected);
      }
    }
  }
  // A file without a size is read to its end.
  Files unsized({"/proc/self/status"}, 0);
  for (auto& reader : readers()) {
    for (const Outcome& one : outcomes(*reader, unsized, {0})) CHECK(!one.failed && one.bytes.size() > 100);
  }
}

void extents(const Folder& folder) {
  std::vector<std::string> paths;
  std::vector<Stamp> stamps;
  for (const size_t size : {3 << 20, 100, 70001}) {
    paths.push_back(made(folder / ("shard" + std::to_string(size)), size));
    stamps.push_back(stamp_of(paths.back()));
  }
  std::vector<Extent> all{{1, 0, 100}, {1, 100, 0},  {1, 99, 1},      {0, 3 << 20, 0},
                          {0, 0, 0},   {0, 4097, 0}, {0, 0, 3 << 20}, {2, 65536, 4465}};
  for (int i = 0; i < 60; ++i) {  // anywhere
    const auto file = static_cast<uint32_t>(below(3));
    const auto size = static_cast<uint64_t>(stamps[file].size);
    const uint64_t offset = below(size), length = below(std::min<uint64_t>(size - offset, 90000) + 1);
    all.push_back({file, offset, length});
  }
  for (uint64_t at = 1000; at < 200000; at += 3333) all.push_back({0, at, below(3333)});     // neighbours
  for (uint64_t at = 0; at < 60; ++at) all.push_back({2, 500 * at, 5000});                   // overlapping
  for (uint64_t at = 0; at < 20; ++at) all.push_back({0, (at << 16) + 512, (at % 3) << 9});  // far apart
  Files files(paths, all, stamps, 5);
  std::vector<Bytes> contents;
  std::vector<Bytes> shards;
  for (const auto& path : paths) shards.push_back(by_stream(path));
  for (const Extent& extent : all) {
    const auto begin = shards[extent.file].begin() + static_cast<ptrdiff_t>(extent.offset);
    contents.emplace_back(begin, begin + static_cast<ptrdiff_t>(extent.length));
  }
  for (auto& reader : readers()) {
    for (const size_t count : {size_t{1}, size_t{4}, 3 * size_t{kDepth}, all.size()}) {
      for (int repeat = 0; repeat < 6; ++repeat) {
        std::vector<size_t> samples;
        std::vector<Bytes> expected;
        for (size_t i = 0; i < count; ++i) samples.push_back(below(all.size()));
        if (count > 1) samples[1] = samples[0];
        for (const size_t sample : samples) expected.push_back(contents[sample]);
        expect(outcomes(*reader, files, samples), expected);
      }
    }
  }
}

// All readers must give the same kind of error for the same file, and go on with the others.
void failures(const Folder& folder) {
  fs::create_directory(folder / "folder");
#ifdef __SANITIZE_THREAD__
  const std::string faulty = folder / "missing";  // its shadow memory lies where a plain process has nothing
  constexpr int kFault = ENOENT;
#else
  const std::string faulty = "/proc/self/mem";
  constexpr int kFault = EIO;
#endif
  const std::string good = made(folder / "good", 5000);
  for (const std::string& parent : {folder / "folder", std::string("/dev/shm")}) {
    if (!fs::is_directory(parent)) continue;
    Files files({good, folder / "missing", parent, faulty, good}, 0);
    for (auto& reader : readers()) {
      const auto all = outcomes(*reader, files, {0, 1, 2, 3, 4});
      CHECK(!all[0].failed && !all[4].failed && all[4].bytes == by_stream(good));
      const int codes[] = {0, ENOENT, EISDIR, kFault};
      for (size_t i = 1; i < 4; ++i) {
        CHECK(all[i].failed && all[i].bytes.empty() && all[i].kind == ErrorKind::system);
        CHECK(all[i].code == codes[i] && all[i].file == files.path(i));
      }
    }
  }
}

// What has no end, or never begins, is refused at once, and the others are read.
void no_files(const Folder& folder) {
  const std::string good = made(folder / "file", 70000), fifo = folder / "fifo", link = folder / "link",
                    loop = folder / "loop";
  CHECK(::mkfifo(fifo.c_str(), 0600) == 0);
  fs::create_symlink("fifo", link);
  fs::create_symlink("loop", loop);
  Files files({good, fifo, link, "/dev/zero", "/dev/ptmx", loop, good}, 7);
  for (auto& reader : readers()) {
    for (int again = 0; again < 2; ++again) {
      const auto all = outcomes(*reader, files, {0, 1, 2, 3, 4, 5, 6});
      for (size_t i = 0; i < all.size(); ++i) {
        const bool refused = i > 0 && i < 6;
        CHECK(all[i].failed == refused);
        if (!refused) CHECK(all[i].bytes == by_stream(good));
        if (refused) CHECK(all[i].kind == ErrorKind::system && all[i].file == files.path(i));
        if (refused && i < 4) CHECK(all[i].code == EINVAL);
      }
    }
  }
  // A file that is replaced by a FIFO once its size is known, and read into a place of that size.
  std::vector<uint8_t> place(70000);
  for (auto& reader : readers()) {
    Files swapped({fifo}, 0);
    bool failed = false;
    const std::vector<size_t> first{0};
    const std::vector<foreload::Place> places{{place.data(), place.size()}};
    reader->read(swapped, first, places, [&](size_t, std::span<const uint8_t>, std::exception_ptr error) {
      failed = error != nullptr;
    });
    CHECK(failed);
  }
}

void changed_shards(const Folder& folder) {
  const std::string path = folder / "changing", other = made(folder / "other", 9000);
  for (size_t number = 0; number < readers().size(); ++number) {
    const std::vector<Extent> extents{{0, 0, 5000}, {0, 60000, 40000}, {0, 99999, 1}, {1, 4000, 5000}};
    const auto open = [&] {
      return std::make_unique<Files>(std::vector{path, other}, extents,
                                     std::vector{stamp_of(path), stamp_of(other)}, 0);
    };
    const auto read = [&](Files& files) { return outcomes(*readers()[number], files, {0, 1, 2, 3}); };
    const auto refused = [&](const std::vector<Outcome>& all, const char* why) {
      for (size_t i = 0; i < 3; ++i) {
        CHECK(all[i].failed && all[i].kind == ErrorKind::decode && all[i].file == path);
        CHECK(all[i].message.find(why) != std::string::npos);
      }
      CHECK(!all[3].failed);  // of another shard
    };
    made(path, 100000);
    auto files = open();
    for (const Outcome& one : read(*files)) CHECK(!one.failed);
    fs::resize_file(path, 70000);  // open already
    refused(read(*files), "has changed");
    made(path, 100000);
    files = open();
    fs::resize_file(path, 70000);  // not open yet
    refused(read(*files), "has changed");
    made(path, 100000);
    files = open();
    for (const Outcome& one : read(*files)) CHECK(!one.failed);
    const Stamp before = stamp_of(path);
    while (stamp_of(path).modified == before.modified) made(path, 100000);  // in place, of the same size
    refused(read(*files), "has changed");
    files = open();
    fs::remove(path);
    const auto all = read(*files);
    CHECK(all[0].failed && all[0].kind == ErrorKind::system && all[0].code == ENOENT && !all[3].failed);
    // A replaced one is read to the end of the epoch, once it is open.
    made(path, 100000);
    files = open();
    const auto old = read(*files);
    made(folder / "new", 100000);
    fs::rename(folder / "new", path);
    const auto kept = read(*files);
    for (size_t i = 0; i < 4; ++i) CHECK(!kept[i].failed && kept[i].bytes == old[i].bytes);
  }
  // An index that says more than there is.
  made(path, 100);
  Files files({path}, {{0, 90, 11}, {0, 200, 5}, {0, 0, 100}}, {stamp_of(path)}, 0);
  for (auto& reader : readers()) {
    const auto all = outcomes(*reader, files, {0, 1, 2});
    for (size_t i = 0; i < 2; ++i) {
      CHECK(all[i].failed && all[i].kind == ErrorKind::decode);
      CHECK(all[i].message.find("cut short") != std::string::npos);
    }
    CHECK(!all[2].failed && all[2].bytes == by_stream(path));
  }
}

void many_threads(const Folder& folder, bool direct) {
  const std::string path = made(folder / "shared", 300000);
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < 100; ++i) extents.push_back({0, 2900 * i, 2900 + i});
  Files files({path}, extents, {stamp_of(path)}, 20);
  const Bytes content = by_stream(path);
  AdaptiveReader reader(kDepth);
  files.set_direct(direct);
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<size_t> samples(1 + random() % 40);
        for (size_t& sample : samples) sample = random() % extents.size();
        const auto all = outcomes(reader, files, samples);
        for (size_t i = 0; i < samples.size(); ++i) {
          const Extent& extent = extents[samples[i]];
          CHECK(!all[i].failed && all[i].bytes.size() == extent.length);
          CHECK(std::equal(all[i].bytes.begin(), all[i].bytes.end(),
                           content.begin() + static_cast<ptrdiff_t>(extent.offset)));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What is read alone, outside of a reader, is read in the same way.
void one_by_one(const Folder& folder) {
  const std::string path = made(folder / "alone", 70001);
  const Bytes content = by_stream(path);
  std::vector<uint8_t> buffer;
  for (const bool direct : {false, true}) {
    Files whole({path}, 0), parts({path}, {{0, 4097, 5000}, {0, 70000, 1}}, {stamp_of(path)}, 0);
    whole.set_direct(direct);
    parts.set_direct(direct);
    const auto all = whole.bytes(0, buffer);
    CHECK(std::equal(all.begin(), all.end(), content.begin(), content.end()));
    const auto part = parts.bytes(0, buffer);
    CHECK(std::equal(part.begin(), part.end(), content.begin() + 4097, content.begin() + 9097));
    CHECK(parts.bytes(1, buffer)[0] == content[70000]);
  }
}

void direct_problems(const Folder& folder, bool in_memory) {
  const std::string path = made(folder / "problem", 5000), empty = made(folder / "empty", 0);
  const auto why = Files({empty, folder / "missing", path}, 0).direct_problem();
  CHECK(!Files({empty, folder / "missing", "/dev/zero"}, 0).direct_problem());
  const std::string before = fs::current_path();
  fs::current_path(folder.path);
  CHECK(Files({"problem"}, 0).direct_problem().has_value() == why.has_value());
  fs::current_path(before);
  if (!in_memory) return;  // the file system may have O_DIRECT, or not
  CHECK(why && why->first == path && why->second.find("memory") != std::string::npos);
}

// The child has none of what the parent's readers had mapped, and may map something else there.
void fork_beside_idle_readers(const Folder& folder) {
  const std::string path = made(folder / "forked", 50000);
  const Bytes content = by_stream(path);
  for (const bool child_reads : {true, false}) {
    auto reader = std::make_unique<AdaptiveReader>(kDepth);
    Files files({path}, 0);
    files.set_direct(true);
    const auto right = [&] { return outcomes(*reader, files, {0, 0, 0})[2].bytes == content; };
    CHECK(right());
    const pid_t child = ::fork();
    if (child == 0) {
      if (child_reads && !right()) ::_exit(1);
      std::vector<uint8_t*> own;
      for (int i = 0; i < 256; ++i) {
        void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        own.push_back(static_cast<uint8_t*>(memory));
        *own.back() = static_cast<uint8_t>(i);
      }
      reader.reset();
      for (size_t i = 0; i < own.size(); ++i) {
        if (*own[i] != i) ::_exit(2);
      }
      ::_exit(0);
    }
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(right());
  }
}

}  // namespace

int main() {
  std::vector<fs::path> parents{fs::temp_directory_path()};
  if (::access("/dev/shm", W_OK) == 0) parents.emplace_back("/dev/shm");
  for (const fs::path& parent : parents) {
    const Folder folder(parent);
    whole_files(folder);
    extents(folder);
    failures(folder);
    no_files(folder);
    changed_shards(folder);
    many_threads(folder, false);
    many_threads(folder, true);
    one_by_one(folder);
    direct_problems(folder, parent == "/dev/shm");
    fork_beside_idle_readers(folder);
  }
}
