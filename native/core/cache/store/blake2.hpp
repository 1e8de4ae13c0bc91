// BLAKE2b with a key, by its specification (RFC 7693), for little-endian machines: only who has the key can
// make the tag of some bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace foreload {

class Blake2 {
 public:
  using Key = std::array<uint8_t, 32>;
  using Tag = std::array<uint8_t, 16>;

  explicit Blake2(const Key& key);
  Blake2& add(std::span<const uint8_t> bytes);
  Tag tag();

 private:
  void compress(const uint8_t* block, bool last);

  std::array<uint64_t, 8> state_;
  uint64_t count_ = 0;
  std::array<uint8_t, 128> block_{};
  size_t filled_;
};

// Compares in a time that does not depend on where tags differ.
inline bool same(const Blake2::Tag& a, const Blake2::Tag& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= unsigned{a[i]} ^ b[i];
  return difference == 0;
}

}  // namespace foreload
