// XXH64, by its specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), for little-endian machines.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace foreload {

inline uint64_t checksum(std::span<const uint8_t> bytes, uint64_t seed = 0) {
  constexpr uint64_t k1 = 0x9E3779B185EBCA87, k2 = 0xC2B2AE3D27D4EB4F, k3 = 0x165667B19E3779F9,
                     k4 = 0x85EBCA77C2B2AE63, k5 = 0x27D4EB2F165667C5;
  const auto read = [](const uint8_t* from, auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  const auto round = [](uint64_t sum, uint64_t lane) { return std::rotl(sum + lane * k2, 31) * k1; };
  const uint8_t* at = bytes.data();
  const uint8_t* const end = at + bytes.size();
  uint64_t hash = seed + k5;
  if (bytes.size() >= 32) {
    uint64_t sums[4] = {seed + k1 + k2, seed + k2, seed, seed - k1};
    for (; end - at >= 32; at += 32) {
      for (int i = 0; i < 4; ++i) sums[i] = round(sums[i], read(at + 8 * i, uint64_t{0}));
    }
    hash = std::rotl(sums[0], 1) + std::rotl(sums[1], 7) + std::rotl(sums[2], 12) + std::rotl(sums[3], 18);
    for (const uint64_t sum : sums) hash = (hash ^ round(0, sum)) * k1 + k4;
  }
  hash += bytes.size();
  for (; end - at >= 8; at += 8) hash = std::rotl(hash ^ round(0, read(at, uint64_t{0})), 27) * k1 + k4;
  for (; end - at >= 4; at += 4) hash = std::rotl(hash ^ read(at, uint32_t{0}) * k1, 23) * k2 + k3;
  for (; at < end; ++at) hash = std::rotl(hash ^ *at * k5, 11) * k1;
  hash = (hash ^ (hash >> 33)) * k2;
  hash = (hash ^ (hash >> 29)) * k3;
  return hash ^ (hash >> 32);
}

}  // namespace foreload
