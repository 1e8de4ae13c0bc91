// An allocator within a segment: segregated free lists, neighbours joined at once. All of its state lies in
// the segment, as offsets, so that any process can use it. Callers hold a lock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;
  // The bytes that a block takes beyond those requested, rounded up to the alignment.
  static constexpr size_t kOverhead = 64;

  static constexpr size_t block_size(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment + kOverhead;
  }

  // In front of every block.
  struct Block {
    uint64_t size;            // with this head
    uint64_t size_before;     // of the block in front of it; 0 for the first
    uint64_t next, previous;  // in a free list; free for other uses by the holder of the block
    uint64_t note;            // for the holder
    uint32_t is_free;
  };
  static_assert(sizeof(Block) <= kOverhead);

  static constexpr int kBins = 256;
  struct State {
    uint64_t size, used, peak;
    uint64_t heads[kBins];
    uint64_t filled[kBins / 64];
  };

  Arena(State* state, uint8_t* memory) : state_(state), memory_(memory) {}

  // Makes all of the memory free. Once, in zeroed memory that is aligned.
  void format(size_t size);
  // Returns the offset of a block for `bytes`, or kNone.
  uint64_t take(size_t bytes);
  void release(uint64_t offset);

  // Calls visit(offset, size) for the unused bytes of each free block.
  template <typename Visit>
  void each_free(const Visit& visit) const {
    for (uint64_t offset = 0; offset < state_->size; offset += block(offset)->size) {
      if (block(offset)->is_free != 0) visit(offset + kOverhead, block(offset)->size - kOverhead);
    }
  }

  static constexpr uint64_t kNone = UINT64_MAX;
  Block* block(uint64_t offset) const { return reinterpret_cast<Block*>(memory_ + offset); }
  uint8_t* bytes(uint64_t offset) const { return memory_ + offset + kOverhead; }
  const State& state() const { return *state_; }

 private:
  void enlist(uint64_t offset);
  void unlist(uint64_t offset);
  void set_size(uint64_t offset, uint64_t size);

  State* state_;
  uint8_t* memory_;
};

}  // namespace foreload
