// The Mersenne Twisters of other libraries, in place: saved, compared, put back, and keyed by (seed, epoch,
// index).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "random.hpp"

namespace foreload {

inline constexpr size_t kTwisterWords = 624;

// Writes the words of generator number `which` for a sample: what generators draw that are seeded from a key
// which Philox makes of (seed, epoch, index, which).
void fill_twister(Key key, uint64_t index, uint32_t which, uint32_t* words);

// A part of memory that changes when a generator draws.
struct TwisterMemory {
  std::byte* begin;
  // Its content in a keyed generator, but for the words.
  std::vector<std::byte> keyed;
  // Where the words are in it; -1: this part has none.
  std::ptrdiff_t words;
};

// All generators that samples may draw from. The memory must outlive this. Not for two threads at a time.
class Twisters {
 public:
  explicit Twisters(std::vector<TwisterMemory> parts);

  void save();
  // Whether a generator has drawn since save() or key().
  bool changed() const;
  void restore();
  // Exchanges the states with those of as many other generators.
  void exchange(const Twisters& other) const;
  // Gives each generator the state of a sample.
  void key(Key key, uint64_t index);

 private:
  std::vector<TwisterMemory> parts_;
  std::vector<std::vector<std::byte>> saved_;
  std::optional<std::pair<Key, uint64_t>> keyed_;  // by the last call, if that was key()
};

}  // namespace foreload
