#include "arena.hpp"

#include <algorithm>
#include <bit>

namespace foreload {

namespace {

// Four bins for each power of two: a block is at most a quarter larger than its bin's least.
int bin_of(uint64_t size) {
  const int power = 63 - std::countl_zero(size);
  return std::min(Arena::kBins - 1, power * 4 + static_cast<int>((size >> (power - 2)) & 3));
}

}  // namespace

void Arena::format(size_t size) {
  size = size / kAlignment * kAlignment;
  *state_ = {};
  std::fill_n(state_->heads, kBins, kNone);
  state_->size = size;
  if (size < kOverhead) return;
  *block(0) = {size, 0, kNone, kNone, 0, 0};
  enlist(0);
}

uint64_t Arena::take(size_t bytes) {
  const uint64_t needed = block_size(bytes);
  if (needed > state_->size) return kNone;
  const int least = bin_of(needed);
  for (int word = least / 64; word < kBins / 64; ++word) {
    uint64_t bins = state_->filled[word];
    if (word == least / 64) bins &= ~uint64_t{0} << (least % 64);
    for (; bins != 0; bins &= bins - 1) {
      const int bin = word * 64 + std::countr_zero(bins);
      // Only the first bin has blocks that are too small; the best of those that are not keeps the rest
      // whole.
      uint64_t best = kNone;
      for (uint64_t found = state_->heads[bin]; found != kNone; found = block(found)->next) {
        const uint64_t size = block(found)->size;
        if (size >= needed && (best == kNone || size < block(best)->size)) best = found;
        if (best != kNone && (bin != least || block(best)->size == needed)) break;
      }
      if (best == kNone) continue;
      unlist(best);
      const uint64_t rest = block(best)->size - needed;
      if (rest >= kOverhead + kAlignment) {
        *block(best + needed) = {0, needed, kNone, kNone, 0, 0};
        set_size(best + needed, rest);
        block(best)->size = needed;
        enlist(best + needed);
      }
      block(best)->is_free = 0;
      state_->used += block(best)->size;
      state_->peak = std::max(state_->peak, state_->used);
      return best;
    }
  }
  return kNone;
}

void Arena::release(uint64_t offset) {
  uint64_t size = block(offset)->size;
  state_->used -= size;
  const uint64_t after = offset + size;
  if (after < state_->size && block(after)->is_free != 0) {
    size += block(after)->size;
    unlist(after);
  }
  if (offset > 0) {
    const uint64_t before = offset - block(offset)->size_before;
    if (block(before)->is_free != 0) {
      unlist(before);
      size += block(before)->size;
      offset = before;
    }
  }
  set_size(offset, size);
  enlist(offset);
}

void Arena::set_size(uint64_t offset, uint64_t size) {
  block(offset)->size = size;
  if (offset + size < state_->size) block(offset + size)->size_before = size;
}

void Arena::enlist(uint64_t offset) {
  Block* const entry = block(offset);
  const int bin = bin_of(entry->size);
  entry->is_free = 1;
  entry->previous = kNone;
  entry->next = state_->heads[bin];
  if (entry->next != kNone) block(entry->next)->previous = offset;
  state_->heads[bin] = offset;
  state_->filled[bin / 64] |= uint64_t{1} << (bin % 64);
}

void Arena::unlist(uint64_t offset) {
  Block* const entry = block(offset);
  const int bin = bin_of(entry->size);
  entry->is_free = 0;
  if (entry->previous != kNone) {
    block(entry->previous)->next = entry->next;
  } else {
    state_->heads[bin] = entry->next;
    if (entry->next == kNone) state_->filled[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  }
  if (entry->next != kNone) block(entry->next)->previous = entry->previous;
}

}  // namespace foreload
