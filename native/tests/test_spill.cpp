// What was written comes back whole or not at all; the checksum is XXH64.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "check.hpp"
#include "checksum.hpp"
#include "spill.hpp"

using foreload::Spill;

namespace {

constexpr size_t kSamples = 40;

struct Shared {
  std::atomic<uint64_t> places[kSamples]{};
  std::atomic<uint32_t> files{0};
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

uint64_t sum(const std::string& text, uint64_t seed = 0) {
  return foreload::checksum({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, seed);
}

}  // namespace

int main() {
  CHECK(sum("") == 0xEF46DB3751D8E999 && sum("a") == 0xD24EC4F1A98C6E5B && sum("abc") == 0x44BC2CF5AD770999);
  CHECK(sum("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1);

  char folder[] = "/tmp/foreload-spill-XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  {
    Shared shared;
    Spill spill(folder, shared.places, kSamples, &shared.files);
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
    Spill spill(folder, shared.places, kSamples, &shared.files);
    CHECK(spill.scan() == kSamples);
    for (size_t sample = 0; sample < kSamples; ++sample) CHECK(get(spill, sample));
  }
  struct stat about{};
  CHECK(stat(file.c_str(), &about) == 0);
  std::mt19937 random(1);
  // A bit that flipped, then a file that was cut off: some samples are missing, none is wrong.
  for (int round = 0; round < 40; ++round) {
    const int opened = open(file.c_str(), O_RDWR);
    if (round < 30) {
      uint8_t byte = 0;
      const auto at = static_cast<off_t>(random() % static_cast<size_t>(about.st_size));
      CHECK(pread(opened, &byte, 1, at) == 1);
      byte ^= static_cast<uint8_t>(1u << random() % 8);
      CHECK(pwrite(opened, &byte, 1, at) == 1);
    } else {
      CHECK(ftruncate(opened, about.st_size * (39 - round) / 10) == 0);
    }
    close(opened);
    Shared shared;
    Spill spill(folder, shared.places, kSamples, &shared.files);
    spill.scan();
    std::vector<size_t> missing;
    for (size_t sample = 0; sample < kSamples; ++sample) {
      if (!get(spill, sample)) missing.push_back(sample);
    }
    CHECK(!missing.empty());
    if (round == 20) {
      CHECK(put(spill, missing[0]) && get(spill, missing[0]));  // it is written anew
      CHECK(unlink((std::string(folder) + "/00001.spill").c_str()) == 0);
    }
  }
  CHECK(unlink(file.c_str()) == 0 && rmdir(folder) == 0);
  Shared shared;
  Spill nowhere("/nowhere", shared.places, kSamples, &shared.files);
  CHECK(nowhere.scan() == 0 && !put(nowhere, 1) && nowhere.failure() != 0 && !get(nowhere, 1));
}
