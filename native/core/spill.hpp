// Samples on a local disk, for what memory does not hold and for the next run.
//
// Each process appends to a file of its own; a record is a header and the bytes, and counts once it is whole.
// A record that was cut off, or damaged since, is found by its checksum, and treated as missing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace foreload {

class Spill {
 public:
  // `places`: where each sample's record is, shared by all processes; `files`: counts the files.
  Spill(std::string folder, std::atomic<uint64_t>* places, size_t samples, std::atomic<uint32_t>* files);
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  // Finds the records that earlier runs left. Once, before anything else. Returns how many samples there are.
  size_t scan();
  // Appends a record. Returns false if the disk is full or fails; then nothing more is written.
  bool write(size_t sample, uint32_t form, std::span<const std::span<const uint8_t>> parts);
  // Reads a record into `buffer`. Returns false if there is none, or it is damaged.
  bool read(size_t sample, std::vector<uint8_t>& buffer, size_t& size, uint32_t& form);
  // The errno of the failure; 0 if there was none.
  int failure() const { return failure_.load(); }
  // Whether a sample was written, by any process; the record may turn out to be damaged.
  bool holds(size_t sample) const { return places_[sample].load() != 0; }

 private:
  int file_for_reading(uint32_t number);
  int file_for_writing();
  std::string name(uint32_t number) const;
  size_t scan_file(uint32_t number);

  const std::string folder_;
  std::atomic<uint64_t>* const places_;
  const size_t samples_;
  std::atomic<uint32_t>* const files_;
  std::mutex mutex_;  // guards what follows
  std::map<uint32_t, int> open_;
  int own_ = -1;
  uint32_t own_number_ = 0;
  int owner_ = 0;  // the process that own_ belongs to
  uint64_t end_ = 0;
  std::atomic<int> failure_{0};
};

}  // namespace foreload
