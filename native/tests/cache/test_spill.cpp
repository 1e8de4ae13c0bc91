// Records come back whole or not at all, and only with the key; the tags are BLAKE2b's.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "blake2.hpp"
#include "check.hpp"
#include "spill.hpp"

using foreload::Blake2;
using foreload::Spill;

namespace {

constexpr size_t kSamples = 40;

struct Shared {
  std::atomic<uint64_t> places[kSamples]{};
  Spill::Counts counts;
};

std::vector<uint8_t> bytes_of(size_t sample) {
  std::vector<uint8_t> bytes(sample * 97 % 500);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(sample * 7 + i);
  return bytes;
}

bool put(Spill& spill, size_t sample) {
  const auto bytes = bytes_of(sample);
  const std::span<const uint8_t> parts[] = {std::span(bytes).first(bytes.size() / 3),
                                            std::span(bytes).subspan(bytes.size() / 3)};
  return spill.write(sample, 2, parts);
}

// Returns whether a record is there; if it is, it must be right.
bool get(Spill& spill, size_t sample) {
  std::vector<uint8_t> buffer;
  size_t size = 0;
  uint32_t form = 0;
  if (!spill.read(sample, buffer, size, form)) return false;
  const auto bytes = bytes_of(sample);
  CHECK(size == bytes.size() && form == 2);
  CHECK(size == 0 || std::memcmp(buffer.data(), bytes.data(), size) == 0);
  return true;
}

constexpr Blake2::Key kKey = {1, 2, 3};

// The tag of bytes that count up, added in pieces.
std::string tag(size_t size, size_t piece) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i);
  Blake2 code(kKey);
  for (size_t at = 0; at < size; at += piece)
    code.add(std::span(bytes).subspan(at, std::min(piece, size - at)));
  std::string text;
  for (const uint8_t byte : code.tag()) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::vector<uint8_t> content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void set_content(const std::string& path, const std::vector<uint8_t>& content) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
}

struct Folder {
  explicit Folder(const char* path) : file(open(path, O_RDONLY | O_DIRECTORY)) {}
  ~Folder() { close(file); }
  const int file;
};

}  // namespace

int main() {
  // By Python's hashlib.
  const std::pair<size_t, const char*> known[] = {
      {0, "9d49aec4c76ff4102a265f9a012849a2"},    {1, "0f9aca8ffaca22e1e08367520a73e6cb"},
      {127, "ab27c707d2da3abc54332d1ec25deb6c"},  {128, "e9972336b7d5f0e2e30aa59c07926f6f"},
      {129, "8fd9b385f950d46470e5a66821352ee5"},  {256, "d34274ab6ff1beb50cc9a3b671e0c822"},
      {1000, "182ad22fd96ff64daf5c3fdde7b60a63"},
  };
  for (const auto& [size, expected] : known) {
    for (const size_t piece : {1, 7, 64, 128, 200, 2000}) CHECK(tag(size, piece) == expected);
  }

  char folder[] = "/tmp/foreload-spill-XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  const Folder opened_folder(folder);
  {
    Shared shared;
    Spill spill(opened_folder.file, kKey, shared.places, kSamples, &shared.counts);
    CHECK(spill.scan() == 0 && !get(spill, 3));
    std::vector<std::thread> threads;
    for (size_t worker = 0; worker < 4; ++worker) {
      threads.emplace_back([&, worker] {
        for (size_t sample = worker; sample < kSamples; sample += 4) CHECK(put(spill, sample));
        for (size_t sample = 0; sample < kSamples; ++sample) get(spill, sample);
      });
    }
    for (auto& thread : threads) thread.join();
    for (size_t sample = 0; sample < kSamples; ++sample) CHECK(get(spill, sample));
  }
  const std::string file = std::string(folder) + "/00000.spill";
  {
    Shared shared;
    Spill spill(opened_folder.file, kKey, shared.places, kSamples, &shared.counts);
    CHECK(spill.scan() == kSamples);
    for (size_t sample = 0; sample < kSamples; ++sample) CHECK(get(spill, sample));
    // A child that is forked while other threads read may read too.
    std::atomic<bool> is_over = false;
    std::thread reader([&] {
      for (size_t sample = 0; !is_over; sample = (sample + 1) % kSamples) get(spill, sample);
    });
    for (int fork_number = 0; fork_number < 500; ++fork_number) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(20);  // instead of waiting for ever
        _exit(get(spill, 3) ? 0 : 1);
      }
      int status = -1;
      CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    is_over = true;
    reader.join();
  }
  const auto content = content_of(file);
  std::mt19937 random(1);
  // Bits that flipped, or a file that was cut off: some samples are missing, none is wrong.
  for (int round = 0; round < 60; ++round) {
    auto changed = content;
    if (round < 50) {
      for (int flips = 0; flips <= round; flips += 5)
        changed[random() % changed.size()] ^= 1u << random() % 8;
    } else {
      changed.resize(changed.size() * static_cast<size_t>(59 - round) / 10);
    }
    set_content(file, changed);
    Shared shared;
    Spill spill(opened_folder.file, kKey, shared.places, kSamples, &shared.counts);
    const size_t found = spill.scan();
    std::vector<size_t> missing;
    for (size_t sample = 0; sample < kSamples; ++sample) {
      if (!get(spill, sample)) missing.push_back(sample);
    }
    CHECK(!missing.empty());
    CHECK((spill.rejected() > 0) == (round < 50));            // what is cut off is no wonder
    CHECK((access(file.c_str(), F_OK) == 0) == (found > 0));  // a file without records is removed
    if (round == 20) {
      CHECK(put(spill, missing[0]) && get(spill, missing[0]));  // it is written anew
      CHECK(unlink((std::string(folder) + "/00001.spill").c_str()) == 0);
    }
  }
  // With another key, under another name, as a link or a pipe, nothing is found, and nothing waited for.
  set_content(file, content);
  for (int round = 0; round < 5; ++round) {
    const std::string kept = std::string(folder) + "/kept";
    if (round == 1) CHECK(rename(file.c_str(), kept.c_str()) == 0 && symlink("kept", file.c_str()) == 0);
    if (round == 2) CHECK(mkfifo(file.c_str(), 0600) == 0);
    if (round == 3) CHECK(rename(kept.c_str(), (std::string(folder) + "/70000.spill").c_str()) == 0);
    if (round == 4) CHECK(mkdir(file.c_str(), 0700) == 0);
    Shared shared;
    const Blake2::Key other = {3, 2, 1};
    Spill spill(opened_folder.file, round == 0 ? other : kKey, shared.places, kSamples, &shared.counts);
    CHECK(spill.scan() == 0 && spill.rejected() == 1 && !get(spill, 3));
    CHECK(put(spill, 3) && get(spill, 3));
    CHECK(unlink((std::string(folder) + (round == 3 ? "/00000.spill" : "/00001.spill")).c_str()) == 0);
    if (round == 0) set_content(file, content);
    if (round == 4) CHECK(rmdir(file.c_str()) == 0);
  }
  CHECK(rmdir(folder) == 0);
  Shared shared;
  Spill nowhere(-1, kKey, shared.places, kSamples, &shared.counts);
  CHECK(nowhere.scan() == 0 && !put(nowhere, 1) && nowhere.failure() != 0 && !get(nowhere, 1));
}
