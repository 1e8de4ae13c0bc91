// The cache itself: samples in a segment that all workers share, and the plan's word on which to keep.
//
// Each sample has an entry, one atomic word that says whether the sample is there and how often it was asked
// for. The n-th request reads the n-th bit of the sample's schedule and moves the word on in the same step,
// so that every policy costs the same: nothing. A hit takes no lock. Memory that was dropped is used again
// when the sections that might still read it have ended (epoch-based reclamation, Fraser 2004). Processes
// that are killed are found by their number: what they had begun to write is a miss, what they were reading
// is free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena.hpp"
#include "plan.hpp"
#include "segment.hpp"
#include "spill.hpp"

namespace foreload {

// What a sample is kept as.
enum class Form : uint32_t { packed = 0, encoded = 1, rgb = 2, planes = 3 };

enum class Keeping : uint32_t {
  planned,  // what the schedule says, and beyond it, whatever is there
  all,      // everything that there is room for
  recent,   // everything; the least recently used goes (for orders that were not foreseen)
};

class SampleStore {
 public:
  // Room for `bytes` of samples (each takes Arena::block_size), of a dataset of `samples`, and for schedules
  // of up to `accesses`. At most `most` samples where that is not 0, for Keeping::recent.
  static std::shared_ptr<SampleStore> create(size_t samples, size_t bytes, size_t accesses, size_t most);
  // The same store in another process.
  static std::shared_ptr<SampleStore> open(int file);

  int file() const { return segment_->file(); }
  size_t samples() const;

  // Follow a plan from now on: accesses[t] is kept if keep[t]. Drops residents that are not retained.
  void follow(const int64_t* accesses, size_t count, const uint8_t* keep, const uint8_t* retained);
  // The same for samples that are accessed once per epoch: keep these and no others.
  void follow(const uint8_t* members);
  void follow(Keeping keeping);
  Keeping keeping() const;

  // Around a request: while it lives, what was found stays where it is. One request each, and short.
  class Section {
   public:
    explicit Section(SampleStore& store);
    ~Section();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    friend class SampleStore;
    SampleStore& store_;
    size_t slot_;
  };

  enum class Outcome {
    hit,
    miss,     // load it; nothing else is to be done
    claimed,  // load it, then put() or abandon() it: others may be waiting for it
    busy,     // another worker is loading it, and the caller would not wait; ask again
  };
  struct Found {
    Outcome outcome = Outcome::miss;
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    Form form = Form::packed;
  };
  // The next request for a sample. Waits where another worker is loading what the plan wants kept; whoever
  // has claimed something may not wait.
  Found request(Section& section, size_t sample, bool wait = true);

  // Memory for a claimed sample, or null where there is no room; then it is abandoned already. Not within a
  // section of the caller's own, which would stand in the way.
  uint8_t* reserve(size_t sample, size_t size, Form form);
  void commit(size_t sample);
  void abandon(size_t sample);

  // Whether the store is this one's (an object's, say): the first to ask has it.
  bool belongs_to(uint64_t owner);
  // True for one caller of all.
  bool first_to_tell();

  // Use a folder for what memory does not hold. `first`: look for what earlier runs left there; returns how
  // much.
  size_t spill_to(const std::string& folder, bool first);
  Spill* spill() const { return spill_.get(); }

  // What loading a sample took, for the next plan.
  void note_cost(size_t sample, uint64_t nanoseconds);
  // How large a sample is that was never kept, and whether that is known.
  void note_size(size_t sample, size_t size);
  bool is_measured(size_t sample) const;
  // Per sample, 0 where nothing is known: what it takes of the room, what loading it took last and before.
  void sizes(int64_t* out) const;
  void costs(int64_t* last, int64_t* before) const;

  // Whether it is there, without asking for it.
  bool contains(size_t sample) const;
  // Bool per sample: what is there.
  void residents(uint8_t* out) const;
  // Drops one sample, or all.
  void drop(size_t sample);
  void clear();

  // What the samples may take from now on, at most what it was created with. Drops as many as that takes, and
  // gives their memory back to the system.
  void limit(size_t bytes);

  struct Counts {
    uint64_t hits, misses, kept, refused, waits;
    uint64_t unforeseen;  // requests beyond the schedule's
    uint64_t used, peak, room;
  };
  Counts counts() const;

 private:
  struct Header;
  struct Entry;
  struct Slot;

  explicit SampleStore(std::unique_ptr<Segment> segment);
  void lay_out();
  bool keeps(size_t sample, uint64_t use, bool present);
  void retire(uint64_t block);
  void release(Entry& entry, uint64_t block);
  void reclaim();
  uint64_t oldest_section() const;
  bool evict_oldest();
  uint64_t take(size_t size);
  void wait_for(Slot& slot, const Entry& entry, uint64_t seen);
  void recover(size_t sample, uint64_t seen);
  void wake();
  Arena arena() const;

  std::unique_ptr<Segment> segment_;
  std::unique_ptr<Spill> spill_;
  Header* header_ = nullptr;
  Slot* slots_ = nullptr;
  Entry* entries_ = nullptr;
  std::atomic<uint64_t>* offsets_ = nullptr;  // of each sample's bits in the schedule
  std::atomic<uint64_t>* bits_ = nullptr;
  std::atomic<uint64_t>* spilled_ = nullptr;
  uint8_t* memory_ = nullptr;
  std::vector<std::pair<uint64_t, size_t>> oldest_;  // (stamp, sample), latest first; guarded by the lock
};

}  // namespace foreload
