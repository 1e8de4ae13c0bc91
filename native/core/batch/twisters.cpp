#include "twisters.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace foreload {

namespace {

// xoshiro128++ (Blackman, Vigna: "Scrambled linear pseudorandom number generators", ACM TOMS 47, 2021),
// several side by side, so that compilers use vector instructions. No step multiplies, which narrow vectors
// do slowly.
constexpr size_t kLanes = 16;
static_assert(kTwisterWords % kLanes == 0);

struct Lanes {
  uint32_t a[kLanes], b[kLanes], c[kLanes], d[kLanes];

  void next(uint32_t* out) {
    for (size_t i = 0; i < kLanes; ++i) {
      out[i] = std::rotl(a[i] + d[i], 7) + a[i];
      const uint32_t shifted = b[i] << 9;
      c[i] ^= a[i];
      d[i] ^= b[i];
      b[i] ^= c[i];
      a[i] ^= d[i];
      c[i] ^= shifted;
      d[i] = std::rotl(d[i], 11);
    }
  }
};

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA'14).
uint64_t next_seed(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

void fill_twister(Key key, uint64_t index, uint32_t which, uint32_t* words) {
  // The first counter word counts the blocks of a sample's own draws (random.hpp), of which there are fewer.
  const std::array<uint32_t, 4> named =
      philox({~which, key.epoch, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)},
             {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  uint64_t state = named[0] | uint64_t{named[1]} << 32;
  const uint64_t mixed = named[2] | uint64_t{named[3]} << 32;
  Lanes lanes;
  for (size_t i = 0; i < kLanes; ++i) {
    const uint64_t first = next_seed(state) ^ mixed, second = next_seed(state) ^ mixed;
    lanes.a[i] = static_cast<uint32_t>(first);
    lanes.b[i] = static_cast<uint32_t>(first >> 32);
    lanes.c[i] = static_cast<uint32_t>(second);
    lanes.d[i] = static_cast<uint32_t>(second >> 32) | 1;  // zeros only would stay so
  }
  for (size_t k = 0; k < kTwisterWords; k += kLanes) lanes.next(words + k);
  words[0] |= 0x80000000;  // so would a twister's
}

Twisters::Twisters(std::vector<TwisterMemory> parts) : parts_(std::move(parts)) {
  for (const TwisterMemory& part : parts_) saved_.emplace_back(part.keyed.size());
  save();
}

void Twisters::save() {
  for (size_t i = 0; i < parts_.size(); ++i) std::memcpy(saved_[i].data(), parts_[i].begin, saved_[i].size());
  keyed_.reset();
}

bool Twisters::changed() const {
  uint32_t which = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::vector<std::byte> last = keyed_ ? parts_[i].keyed : saved_[i];
    if (keyed_ && parts_[i].words >= 0) {
      std::array<uint32_t, kTwisterWords> words;
      fill_twister(keyed_->first, keyed_->second, which++, words.data());
      std::memcpy(last.data() + parts_[i].words, words.data(), sizeof words);
    }
    if (std::memcmp(last.data(), parts_[i].begin, last.size()) != 0) return true;
  }
  return false;
}

void Twisters::restore() {
  for (size_t i = 0; i < parts_.size(); ++i) std::memcpy(parts_[i].begin, saved_[i].data(), saved_[i].size());
}

void Twisters::exchange(const Twisters& other) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::byte* begin = parts_[i].begin;
    std::swap_ranges(begin, begin + parts_[i].keyed.size(), other.parts_[i].begin);
  }
}

void Twisters::key(Key key, uint64_t index) {
  keyed_ = {key, index};
  uint32_t which = 0;
  std::array<uint32_t, kTwisterWords> words;
  for (const TwisterMemory& part : parts_) {
    if (part.words < 0) {
      std::memcpy(part.begin, part.keyed.data(), part.keyed.size());
      continue;
    }
    fill_twister(key, index, which++, words.data());
    const size_t end = part.words + sizeof words;
    std::memcpy(part.begin, part.keyed.data(), part.words);
    std::memcpy(part.begin + part.words, words.data(), sizeof words);
    std::memcpy(part.begin + end, part.keyed.data() + end, part.keyed.size() - end);
  }
}

}  // namespace foreload
