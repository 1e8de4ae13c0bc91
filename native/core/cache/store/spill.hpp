// Samples on a local disk, for what memory does not hold and for the next run.
//
// Each process appends to a file of its own; a record is a header and the bytes, and counts once it is whole.
// Header and bytes are each followed by a tag that needs the folder's key. A record whose tag is wrong was
// damaged, or not written by this user: it is treated as missing, and counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "blake2.hpp"

namespace foreload {

class Spill {
 public:
  // What processes share: the number of the next file; that of the first file which no earlier run wrote; how
  // many files and records were rejected; how many records of earlier runs are still to be compared with the
  // dataset; and 1 + the sample that was not the same.
  struct Counts {
    std::atomic<uint32_t> files{0}, own{0}, rejected{0};
    std::atomic<int32_t> unchecked{0};
    std::atomic<uint64_t> wrong{0};
  };

  // `folder`: a descriptor, which is copied; `places`: where each sample's record is, shared by all
  // processes.
  Spill(int folder, const Blake2::Key& key, std::atomic<uint64_t>* places, size_t samples, Counts* counts);
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  // Finds the records that earlier runs left, and removes files without any. Once, before anything else.
  // Returns how many there are.
  size_t scan();
  // Appends a record. Returns false if the disk is full or fails; then nothing more is written.
  bool write(size_t sample, uint32_t form, std::span<const std::span<const uint8_t>> parts);
  // Reads a record into `buffer`. Returns false if there is none, or its tag is wrong.
  bool read(size_t sample, std::vector<uint8_t>& buffer, size_t& size, uint32_t& form);
  // The errno of the failure; 0 if there was none.
  int failure() const { return failure_.load(); }
  // Whether a record that was read is to be compared with the dataset, which may have changed since an
  // earlier run wrote it: the first ones are, by whichever process reads them.
  bool needs_check(size_t sample) const;
  // Notes the result. After a difference, nothing is read or written any more, by any process.
  void note_check(size_t sample, bool is_same);
  // The sample that was not what the dataset gave; -1 if there was none.
  int64_t wrong() const { return static_cast<int64_t>(counts_->wrong.load()) - 1; }
  // How many files and records were rejected so far, by any process.
  uint32_t rejected() const { return counts_->rejected.load(); }
  // Whether a sample was written, by any process; the record may turn out to be damaged.
  bool holds(size_t sample) const { return counts_->wrong.load() == 0 && places_[sample].load() != 0; }

 private:
  struct Head;

  int file_for_reading(uint32_t number);
  int file_for_writing();
  size_t scan_file(uint32_t number);
  Blake2::Tag tag_of_head(const Head& head) const;
  Blake2::Tag tag_of_bytes(const Head& head, std::span<const uint8_t> bytes) const;
  bool read_at(int file, uint64_t offset, size_t sample, std::vector<uint8_t>& buffer, Head& head);

  const int folder_;
  const Blake2::Key key_;
  std::atomic<uint64_t>* const places_;
  const size_t samples_;
  Counts* const counts_;
  // A mutex of all spills guards what follows.
  std::map<uint32_t, int> open_;
  int own_ = -1;
  uint32_t own_number_ = 0;
  int owner_ = 0;  // the process that own_ belongs to
  uint64_t end_ = 0;
  std::atomic<int> failure_{0};
};

}  // namespace foreload
