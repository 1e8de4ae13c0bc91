#include "twisters.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace foreload {

void fill_twister(Key key, uint64_t index, uint32_t which, uint32_t* words) {
  // The first counter word counts the blocks of a sample's own draws (random.hpp), of which there are fewer.
  const std::array<uint32_t, 4> named =
      philox({~which, key.epoch, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)},
             {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  uint64_t state = named[0] | uint64_t{named[1]} << 32;
  const uint64_t mixed = named[2] | uint64_t{named[3]} << 32;
  for (size_t k = 0; k < kTwisterWords; k += 2) {
    state += 0x9E3779B97F4A7C15;
    uint64_t z = state ^ mixed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    words[k] = static_cast<uint32_t>(z);
    words[k + 1] = static_cast<uint32_t>(z >> 32);
  }
  words[0] |= 0x80000000;  // a twister of zeros only would stay there
}

Twisters::Twisters(std::vector<TwisterMemory> parts) : parts_(std::move(parts)) {
  for (const TwisterMemory& part : parts_) saved_.emplace_back(part.keyed.size());
  last_ = saved_;
  save();
}

void Twisters::save() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::memcpy(saved_[i].data(), parts_[i].begin, saved_[i].size());
    std::memcpy(last_[i].data(), parts_[i].begin, last_[i].size());
  }
}

bool Twisters::changed() const {
  for (size_t i = 0; i < parts_.size(); ++i)
    if (std::memcmp(last_[i].data(), parts_[i].begin, last_[i].size()) != 0) return true;
  return false;
}

void Twisters::restore() {
  for (size_t i = 0; i < parts_.size(); ++i) std::memcpy(parts_[i].begin, saved_[i].data(), saved_[i].size());
}

void Twisters::exchange() {
  for (size_t i = 0; i < parts_.size(); ++i)
    std::swap_ranges(saved_[i].begin(), saved_[i].end(), parts_[i].begin);
}

void Twisters::key(Key key, uint64_t index) {
  uint32_t which = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::vector<std::byte>& state = last_[i];
    std::memcpy(state.data(), parts_[i].keyed.data(), state.size());
    if (parts_[i].words >= 0) {
      std::array<uint32_t, kTwisterWords> words;
      fill_twister(key, index, which++, words.data());
      std::memcpy(state.data() + parts_[i].words, words.data(), sizeof words);
    }
    std::memcpy(parts_[i].begin, state.data(), state.size());
  }
}

}  // namespace foreload
