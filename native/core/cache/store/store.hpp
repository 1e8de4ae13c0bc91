// The cache itself: samples in a segment that all workers share, kept as the plan says.
//
// Each sample has an entry, one atomic word that says whether the sample is present and how often it was
// requested. The n-th request reads the n-th bit of the sample's schedule and moves the word on in the same
// step, so that no policy costs more than another. A hit takes no lock. Memory that was dropped is used again
// when nothing reads it any more (reclaim.hpp). Processes that are killed are found by their number: a sample
// that one of them was loading is a miss, and what it was reading is free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena.hpp"
#include "entry_table.hpp"
#include "random.hpp"
#include "reclaim.hpp"
#include "sample_entry.hpp"
#include "schedule.hpp"
#include "segment.hpp"
#include "spill.hpp"

namespace foreload {

// The form that a sample is kept in.
enum class Form : uint32_t {
  packed = 0,
  encoded = 1,
  rgb = 2,
  planes = 3,
  view = 4,  // what a transform makes of an image in every epoch, as bytes
};

// Which samples are kept.
enum class Rule : uint32_t {
  planned,  // those that the schedule says; beyond it, those that are present
  all,      // those that come first, as many as there is room for
  recent,   // all; the least recently used is evicted (for orders that cannot be foreseen)
  owned,    // those that a router gives to the ranks that share the store
};

class SampleStore {
 public:
  // Makes room for `bytes` of samples (each takes Arena::block_size), of a dataset of `samples`, and for
  // schedules of up to `accesses`. Rules keep at most `max_samples`; 0: any number. Rule::planned
  // keeps what the schedule says, a little more than `max_samples` at most: requests may come in another
  // order. `hashed`: for many more samples than are kept. Nothing then grows with their number, but the store
  // can follow rules only, not plans, and does not know what those samples take and cost that it does not
  // keep.
  static std::shared_ptr<SampleStore> create(size_t samples, size_t bytes, size_t accesses,
                                             size_t max_samples, bool hashed = false);
  // Opens the same store in another process.
  static std::shared_ptr<SampleStore> open(int file);

  int file() const { return segment_->file(); }
  size_t samples() const;
  bool is_hashed() const { return entries_.is_hashed(); }

  // Follows a plan from now on: accesses[t] is kept if keep[t]. Drops residents that are not retained.
  void follow(const int64_t* accesses, size_t count, const uint8_t* keep, const uint8_t* retained);
  // The same for samples that are accessed once per epoch: keep these and no others.
  void follow(const uint8_t* members);
  void follow(Rule rule);
  // Keeps the samples of position below `limit` that these ranks own (see Owned), as far as there is room, by
  // Rule::owned.
  void follow(Key key, uint64_t ranks, const int64_t* own, size_t count, uint64_t limit);
  Rule rule() const;

  // While a section lives, what its one request has found stays in its place. It should be short.
  class Section {
   public:
    explicit Section(SampleStore& store);
    ~Section();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    friend class SampleStore;
    Section(SampleStore& store, size_t slot) : store_(store), slot_(slot) {}
    SampleStore& store_;
    size_t slot_;
  };

  enum class Outcome {
    hit,
    miss,     // load it; nothing else is to be done
    claimed,  // load it, then reserve() and commit() it, or abandon() it: others may be waiting for it
    busy,     // another worker is loading it, and the caller would not wait; request it again
  };
  struct Found {
    Outcome outcome = Outcome::miss;
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    Form form = Form::packed;
  };
  // Requests a sample. Waits while another worker is loading it, if the plan keeps it; a caller that has
  // claimed a sample may not wait.
  Found request(Section& section, size_t sample, bool wait = true);

  // Requests a sample that is present, stays so, and has at most `most` bytes: returns a copy. Otherwise, or
  // if that would take any waiting, it returns null, and no request was made.
  std::unique_ptr<uint8_t[]> copy_hit(size_t sample, size_t most, size_t& size);

  // Claims a sample that this section's request found, so that it is kept anew, in another form. Returns
  // false if another worker was faster.
  bool claim_present(Section& section, size_t sample);

  // Returns memory for a claimed sample, or null if there is no room; then it is abandoned already. Not
  // within a section of the caller's own, which would hold up what it waits for.
  uint8_t* reserve(size_t sample, size_t size, Form form);
  void commit(size_t sample);
  void abandon(size_t sample);

  // Whether `owner`, any number but 0, is the first that this was called with.
  bool belongs_to(uint64_t owner);
  // True for the first call in any process, so that a warning is given once.
  bool first_to_tell();

  // Spills what memory does not hold to a folder, of which this is a descriptor. `first`: look for what
  // earlier runs left there; returns how many samples that is.
  size_t spill_to(int folder, const Blake2::Key& key, bool first);
  Spill* spill() const { return spill_.get(); }

  // How many requests are due since the store was created, by the end of the present epoch: a number that all
  // processes see.
  uint64_t due() const;
  void set_due(uint64_t requests);

  // Records what loading a sample took, for the next plan.
  void note_cost(size_t sample, uint64_t nanoseconds);
  // Records the size of a sample that was never kept; whether a size is known, or would not be recorded.
  void note_size(size_t sample, size_t size);
  bool is_measured(size_t sample) const;
  // Per sample: how often it was requested since the last follow(accesses, ...).
  void uses(int64_t* out) const;
  // Per sample, 0 if nothing is known: the room that it takes; what loading it took last and the time before.
  void sizes(int64_t* out) const;
  void costs(int64_t* last, int64_t* before) const;

  // Whether a sample is present; this is not a request.
  bool contains(size_t sample);
  // The same as a bool per sample.
  void residents(uint8_t* out) const;
  // Drops a sample, or all of them.
  void drop(size_t sample);
  void clear();

  // Limits what the samples may take from now on, at most to what the store was created with. Drops as many
  // as that takes, and gives their memory back to the system.
  void limit(size_t bytes);

  struct Counts {
    uint64_t hits, misses, kept, refused, waits;
    uint64_t unforeseen;  // requests beyond the schedule's
    uint64_t used, peak, room;
    uint64_t samples;  // that are present, or being written
  };
  Counts counts() const;

 private:
  struct Header;

  explicit SampleStore(std::unique_ptr<Segment> segment);
  void lay_out();
  // Of a sample that the caller has claimed, so that its entry stays; null: it has not.
  SampleEntry* claimed(size_t sample);
  bool keeps(size_t sample, uint64_t use, bool present) const;
  void meet_plans();
  bool stays(size_t sample, const SampleEntry& entry) const;
  void drop_others();
  std::optional<Outcome> claim_new(size_t sample);
  void erase_absent();
  void erase_if_absent(size_t sample, SampleEntry& entry);
  bool release(SampleEntry& entry, uint64_t block);
  bool is_full() const;
  bool evict_oldest();
  uint64_t take(size_t size);
  void wait_for(size_t slot, const SampleEntry& entry, uint64_t seen);
  void recover(SampleEntry& entry, uint64_t seen);
  void wake();
  Arena arena() const;

  std::unique_ptr<Segment> segment_;
  std::unique_ptr<Spill> spill_;
  // In the segment.
  Header* header_ = nullptr;
  Reclaimer reclaimer_;
  Schedule schedule_;
  EntryTable entries_;
  std::atomic<uint64_t>* spilled_ = nullptr;
  uint8_t* memory_ = nullptr;
  std::vector<std::pair<uint64_t, size_t>> oldest_;  // (stamp, sample), latest first; guarded by the lock
};

}  // namespace foreload
