// The state of one sample in the store, in memory that processes share.
#pragma once

#include <atomic>
#include <cstdint>

namespace foreload {

struct SampleEntry {
  // State, then how often the sample was requested, then the process that is loading it.
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> block;              // offset + 1; 0: none
  std::atomic<uint64_t> size_and_form;      // see described()
  std::atomic<uint64_t> stamp;              // of the last use
  std::atomic<uint64_t> cost, cost_before;  // nanoseconds

  // gone: this is no longer the sample's entry (see EntryTable); look for it again.
  enum State : uint64_t { absent = 0, loading = 1, present = 2, gone = 3 };
  static constexpr uint64_t kStateBits = 2, kUseBits = 40, kFormBits = 3;

  static constexpr uint64_t described(uint64_t size, uint64_t form) { return (size << kFormBits) | form; }
  static constexpr uint64_t size_of(uint64_t size_and_form) { return size_and_form >> kFormBits; }
  static constexpr uint64_t form_of(uint64_t size_and_form) {
    return size_and_form & ((uint64_t{1} << kFormBits) - 1);
  }

  static constexpr State state_of(uint64_t word) { return static_cast<State>(word & 3); }
  static constexpr uint64_t use_of(uint64_t word) {
    return (word >> kStateBits) & ((uint64_t{1} << kUseBits) - 1);
  }
  static constexpr uint64_t owner_of(uint64_t word) { return word >> (kStateBits + kUseBits); }
  static constexpr uint64_t word_of(State state, uint64_t use, uint64_t owner = 0) {
    return (owner << (kStateBits + kUseBits)) | (use << kStateBits) | state;
  }

  // Changes the state, whatever the number of requests is meanwhile; it has no owner then.
  void set(State state) {
    uint64_t seen = word.load();
    while (!word.compare_exchange_weak(seen, word_of(state, use_of(seen)))) {
    }
  }
  // Begins to count requests anew.
  void reset_use() {
    uint64_t seen = word.load();
    while (!word.compare_exchange_weak(seen, word_of(state_of(seen), 0, owner_of(seen)))) {
    }
  }
};

}  // namespace foreload
