// The permutations that torch.randperm draws, from the first position on and no further than they are asked
// for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>

namespace foreload {

// Permutations of [0, n) by the forward shuffle of Fisher and Yates (Durstenfeld, CACM 7(7), 1964), drawn
// from a Mersenne Twister. Each step makes one position final, so the first ones need not wait for the last.
class FisherYates {
 public:
  // From this number on, torch shuffles in another way.
  static constexpr uint64_t kEnd = UINT32_MAX / 20;

  // Throws Error(value) unless 1 <= n < kEnd, and std::bad_alloc if there are no 4 n bytes of memory.
  FisherYates(uint64_t n, uint64_t seed);

  // Writes the next `count` numbers; after the last one of a permutation, another one begins.
  void fill(int64_t* out, size_t count);

 private:
  struct Free {
    void operator()(uint32_t* memory) const;
  };

  void step(int64_t* out, uint32_t count);
  void begin_anew();

  uint32_t n_;
  uint32_t position_ = 0;
  std::mt19937 engine_;
  // What lies at a place, exclusive or the place itself: of the zeros of numbers that have not been moved,
  // the system makes no memory before it is written to.
  std::unique_ptr<uint32_t[], Free> moved_;
};

}  // namespace foreload
