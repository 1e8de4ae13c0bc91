// The table of the store's entries, in memory that processes share: one entry for each sample of the dataset,
// or, if these are too many, a hash table with entries for only the samples that the store deals with.
//
// Chains of the hash table are read without a lock, within a section of the reclaimer. They are changed under
// the store's lock, by one store at a time, so that they are whole even if a process is killed meanwhile. An
// entry that was taken out is used for another sample when the sections that may still see it have ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "reclaim.hpp"
#include "sample_entry.hpp"

namespace foreload {

class EntryTable {
 public:
  struct State {
    uint64_t samples;
    uint64_t most;  // entries that there is room for; as many as samples: one each
    uint64_t buckets;
    std::atomic<uint64_t> begun;  // entries that have been in use
    // Entries that were taken out, the oldest first, as numbers from 1; 0: none.
    uint32_t first_free, last_free;
    uint64_t num_free;
    uint64_t safe_until;  // those taken out before may be used again
  };

  // Makes room for an entry for each sample if `most` is 0, else for that many.
  static void format(State* state, size_t samples, size_t most);
  static size_t bytes(const State& state);

  EntryTable() = default;
  EntryTable(State* state, uint8_t* memory);

  bool is_hashed() const { return state_->most != state_->samples; }
  // The entry of a sample; null: there is none. Within a section, unless every sample has one.
  SampleEntry* find(uint64_t sample) const { return is_hashed() ? find_in_chain(sample) : &entries_[sample]; }
  // Adds an entry, which begins with this word. Null: there is no room. Under the lock.
  SampleEntry* insert(uint64_t sample, uint64_t word, Reclaimer& reclaimer);
  // Takes out an entry that has become SampleEntry::gone. Under the lock.
  void erase(uint64_t sample, Reclaimer& reclaimer);

  // Calls visit(sample, entry) for all that there are, in the order of samples if each has one, else of
  // insertion; or the other way round.
  template <typename Visit>
  void each(const Visit& visit) const {
    for (uint64_t i = 0; i < size(); ++i) visit_one(i, visit);
  }
  // The same from the last one on, while visit() returns true.
  template <typename Visit>
  void each_backward(const Visit& visit) const {
    for (uint64_t i = size(); i-- > 0;) {
      if (!visit_one(i, visit)) return;
    }
  }

 private:
  struct Node {
    SampleEntry entry;
    std::atomic<uint64_t> sample;
    std::atomic<uint32_t> next;  // in the chain, as a number from 1
    uint32_t next_free;
    uint64_t taken_out;  // by the reclaimer's clock
  };

  uint64_t size() const { return is_hashed() ? state_->begun.load() : state_->samples; }
  template <typename Visit>
  bool visit_one(uint64_t i, const Visit& visit) const {
    if (!is_hashed()) return visit(i, entries_[i]);
    Node& node = nodes_[i];
    if (SampleEntry::state_of(node.entry.word.load()) == SampleEntry::gone) return true;
    return visit(node.sample.load(), node.entry);
  }
  std::atomic<uint32_t>& bucket(uint64_t sample) const;
  SampleEntry* find_in_chain(uint64_t sample) const;
  uint32_t take(Reclaimer& reclaimer);

  State* state_ = nullptr;
  SampleEntry* entries_ = nullptr;            // of all samples
  std::atomic<uint32_t>* buckets_ = nullptr;  // the first of each chain, as a number from 1
  Node* nodes_ = nullptr;
};

}  // namespace foreload
