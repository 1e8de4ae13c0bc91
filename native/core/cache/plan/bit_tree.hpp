// A set of positions that finds the last one up to a limit: a tree of bits with 64 children per node.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace foreload {

class BitTree {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  explicit BitTree(size_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size, 0);
    } while (size > 1);
  }

  void insert(size_t position) {
    for (auto& level : levels_) {
      const uint64_t bit = uint64_t{1} << (position % 64);
      position /= 64;
      const uint64_t before = level[position];
      level[position] = before | bit;
      if (before != 0) return;
    }
  }

  void erase(size_t position) {
    for (auto& level : levels_) {
      level[position / 64] &= ~(uint64_t{1} << (position % 64));
      position /= 64;
      if (level[position] != 0) return;
    }
  }

  // The last member that is at most `limit`, or kNone.
  size_t last_until(size_t limit) const {
    size_t position = limit;
    for (size_t depth = 0; depth < levels_.size(); ++depth) {
      const size_t word = position / 64;
      // Above the leaves, the child that the limit lies in has been searched.
      const uint64_t until =
          depth == 0 ? ~uint64_t{0} >> (63 - position % 64) : (uint64_t{1} << (position % 64)) - 1;
      const uint64_t found = levels_[depth][word] & until;
      if (found != 0) return descend(depth, word * 64 + highest(found));
      position = word;
    }
    return kNone;
  }

 private:
  static size_t highest(uint64_t bits) { return 63 - static_cast<size_t>(std::countl_zero(bits)); }

  size_t descend(size_t depth, size_t position) const {
    while (depth > 0) {
      --depth;
      position = position * 64 + highest(levels_[depth][position]);
    }
    return position;
  }

  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace foreload
