// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC'11). A stream is named by (seed, epoch, index), so any worker can draw any sample's numbers.
#pragma once

#include <array>
#include <cstdint>

namespace foreload {

inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// The random numbers of an epoch; the sample's index completes the name of a stream.
struct Key {
  uint64_t seed = 0;
  uint32_t epoch = 0;
};

class Random {
 public:
  Random(Key key, uint64_t index)
      : key_{static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)},
        counter_{0, key.epoch, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)} {}

  uint32_t bits() {
    if (used_ == 4) {
      block_ = philox(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return block_[used_++];
  }

  // In [0, 1).
  double uniform() { return bits() * 0x1p-32; }
  // In [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // In {0, ..., count - 1}, by multiplication (Lemire); the bias is under count / 2^32.
  uint32_t below(uint32_t count) { return static_cast<uint32_t>((uint64_t{bits()} * count) >> 32); }

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace foreload
