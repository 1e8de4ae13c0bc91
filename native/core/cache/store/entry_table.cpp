#include "entry_table.hpp"

#include <algorithm>
#include <bit>

namespace foreload {

namespace {

// Entries that were taken out are collected up to this number before the sections are looked through for
// them.
constexpr uint64_t kFewFree = 256;

// Entries per chain if all are in use. Samples are mostly much larger than the least that there is room for.
constexpr uint64_t kPerChain = 8;

}  // namespace

void EntryTable::format(State* state, size_t samples, size_t most) {
  state->samples = samples;
  // Numbers have 32 bits. (Without any sample, there is no difference.)
  state->most = most == 0 ? samples : std::min<uint64_t>({most, samples, UINT32_MAX - 1});
  state->buckets = most == 0 ? 0 : std::bit_ceil(std::max<uint64_t>(state->most / kPerChain, 1));
}

size_t EntryTable::bytes(const State& state) {
  if (state.most == state.samples) return state.samples * sizeof(SampleEntry);
  return state.buckets * sizeof(uint32_t) + 64 + state.most * sizeof(Node);
}

EntryTable::EntryTable(State* state, uint8_t* memory)
    : state_(state),
      entries_(reinterpret_cast<SampleEntry*>(memory)),
      buckets_(reinterpret_cast<std::atomic<uint32_t>*>(memory)),
      nodes_(reinterpret_cast<Node*>(memory + (state->buckets * sizeof(uint32_t) + 63) / 64 * 64)) {}

std::atomic<uint32_t>& EntryTable::bucket(uint64_t sample) const {
  // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4): the upper bits are mixed best.
  const uint64_t hash = sample * 0x9E3779B97F4A7C15;
  return buckets_[(hash >> 32) & (state_->buckets - 1)];
}

SampleEntry* EntryTable::find_in_chain(uint64_t sample) const {
  for (uint32_t number = bucket(sample).load(); number != 0;) {
    Node& node = nodes_[number - 1];
    if (node.sample.load() == sample) return &node.entry;
    number = node.next.load();
  }
  return nullptr;
}

// Returns the number of an entry that nothing sees, or 0.
uint32_t EntryTable::take(Reclaimer& reclaimer) {
  const uint64_t begun = state_->begun.load();
  if (state_->num_free > (begun < state_->most ? kFewFree : 0)) {
    const uint32_t number = state_->first_free;
    Node& node = nodes_[number - 1];
    if (node.taken_out >= state_->safe_until) state_->safe_until = reclaimer.safe_until();
    if (node.taken_out < state_->safe_until) {
      state_->first_free = node.next_free;
      if (node.next_free == 0) state_->last_free = 0;
      --state_->num_free;
      return number;
    }
  }
  if (begun >= state_->most) return 0;
  // Until it is in use, those who look through all entries shall not take it for one.
  nodes_[begun].entry.word = SampleEntry::word_of(SampleEntry::gone, 0);
  state_->begun.store(begun + 1);
  return static_cast<uint32_t>(begun + 1);
}

SampleEntry* EntryTable::insert(uint64_t sample, uint64_t word, Reclaimer& reclaimer) {
  const uint32_t number = take(reclaimer);
  if (number == 0) return nullptr;
  Node& node = nodes_[number - 1];
  SampleEntry& entry = node.entry;
  // A process may have been killed after it took the sample out of memory, before it dropped the block.
  if (const uint64_t block = entry.block.exchange(0); block != 0) reclaimer.retire(block - 1);
  entry.size_and_form = 0;
  entry.stamp = 0;
  entry.cost = 0;
  entry.cost_before = 0;
  node.sample = sample;
  entry.word = word;
  std::atomic<uint32_t>& first = bucket(sample);
  node.next = first.load();
  first = number;
  return &entry;
}

void EntryTable::erase(uint64_t sample, Reclaimer& reclaimer) {
  std::atomic<uint32_t>* link = &bucket(sample);
  uint32_t number = link->load();
  while (number != 0 && nodes_[number - 1].sample.load() != sample) {
    link = &nodes_[number - 1].next;
    number = link->load();
  }
  if (number == 0) return;
  Node& node = nodes_[number - 1];
  // Those who are at this entry still find the rest of the chain.
  *link = node.next.load();
  node.taken_out = reclaimer.tick();
  node.next_free = 0;
  (state_->last_free == 0 ? state_->first_free : nodes_[state_->last_free - 1].next_free) = number;
  state_->last_free = number;
  ++state_->num_free;
}

}  // namespace foreload
