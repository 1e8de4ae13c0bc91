#include "fisher_yates.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "error.hpp"

namespace foreload {

namespace {

// Steps whose places are known, and on their way from memory, before the first of them is done.
constexpr uint32_t kAhead = 64;

}  // namespace

void FisherYates::Free::operator()(uint32_t* memory) const {
  std::free(memory);
}

FisherYates::FisherYates(uint64_t n, uint64_t seed)
    : n_(static_cast<uint32_t>(n)), engine_(static_cast<uint32_t>(seed)) {
  if (n < 1 || n >= kEnd) {
    throw Error(ErrorKind::value,
                "n must be from 1 to " + std::to_string(kEnd - 1) + ", got " + std::to_string(n));
  }
  moved_.reset(static_cast<uint32_t*>(std::calloc(n, sizeof(uint32_t))));
  if (moved_ == nullptr) throw std::bad_alloc();
}

void FisherYates::fill(int64_t* out, size_t count) {
  while (count > 0) {
    if (position_ == n_) begin_anew();
    const auto some = static_cast<uint32_t>(std::min<size_t>({count, n_ - position_, kAhead}));
    step(out, some);
    out += some;
    count -= some;
  }
}

void FisherYates::step(int64_t* out, uint32_t count) {
  uint32_t places[kAhead];
  for (uint32_t k = 0; k < count; ++k) {
    const uint32_t left = n_ - position_ - k;
    // Torch draws nothing for the last number, which has no choice.
    places[k] = position_ + k + (left > 1 ? static_cast<uint32_t>(engine_()) % left : 0);
    __builtin_prefetch(&moved_[places[k]], 1);
  }
  for (uint32_t k = 0; k < count; ++k) {
    const uint32_t here = position_ + k, there = places[k];
    const uint32_t own = moved_[here] ^ here;
    out[k] = moved_[there] ^ there;
    moved_[there] = own ^ there;
  }
  position_ += count;
}

void FisherYates::begin_anew() {
  std::memset(moved_.get(), 0, n_ * sizeof(uint32_t));
  position_ = 0;
}

}  // namespace foreload
