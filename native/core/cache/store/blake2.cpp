#include "blake2.hpp"

#include <bit>

namespace foreload {

namespace {

constexpr std::array<uint64_t, 8> kInitial = {0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B,
                                              0xA54FF53A5F1D36F1, 0x510E527FADE682D1, 0x9B05688C2B3E6C1F,
                                              0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179};

constexpr uint8_t kOrder[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

inline void mix(uint64_t& a, uint64_t& b, uint64_t& c, uint64_t& d, uint64_t x, uint64_t y) {
  a += b + x;
  d = std::rotr(d ^ a, 32);
  c += d;
  b = std::rotr(b ^ c, 24);
  a += b + y;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 63);
}

}  // namespace

Blake2::Blake2(const Key& key) : state_(kInitial), filled_(block_.size()) {
  state_[0] ^= 0x01010000 ^ (key.size() << 8) ^ Tag {}.size();
  std::copy(key.begin(), key.end(), block_.begin());
}

void Blake2::compress(const uint8_t* block, bool last) {
  count_ += last ? filled_ : block_.size();
  uint64_t m[16], v[16];
  std::memcpy(m, block, sizeof(m));
  std::copy(state_.begin(), state_.end(), v);
  std::copy(kInitial.begin(), kInitial.end(), v + 8);
  v[12] ^= count_;  // of 128 bits, of which the upper ones are 0 for any memory
  if (last) v[14] = ~v[14];
#pragma GCC unroll 12
  for (size_t round = 0; round < 12; ++round) {
    const uint8_t* const s = kOrder[round % 10];
    mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
    mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
    mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
    mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
    mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
    mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
    mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
    mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
  }
  for (size_t i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
}

// The last block is compressed in tag(), so a full one waits until more comes.
Blake2& Blake2::add(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    if (filled_ == block_.size()) {
      compress(block_.data(), false);
      filled_ = 0;
    }
    for (; filled_ == 0 && bytes.size() > block_.size(); bytes = bytes.subspan(block_.size())) {
      compress(bytes.data(), false);
    }
    const size_t taken = std::min(bytes.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), taken);
    filled_ += taken;
    bytes = bytes.subspan(taken);
  }
  return *this;
}

Blake2::Tag Blake2::tag() {
  std::fill(block_.begin() + static_cast<ptrdiff_t>(filled_), block_.end(), uint8_t{0});
  compress(block_.data(), true);
  Tag tag;
  std::memcpy(tag.data(), state_.data(), tag.size());
  return tag;
}

}  // namespace foreload
