// Finds where the samples of a text file begin: its lines, or the records of a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace foreload {

enum class Split {
  lines,    // every line, empty ones too
  filled,   // lines that hold more than white space
  records,  // of a table: quoted fields may hold line ends, of any kind; empty lines are skipped
};

// Ascending places in a file, in four bytes each: the low half of each, and where the high half increases.
class LineStarts {
 public:
  LineStarts() = default;
  LineStarts(std::vector<uint32_t> low, std::vector<uint64_t> carries)
      : low_(std::move(low)), carries_(std::move(carries)) {}

  void reserve(size_t count) { low_.reserve(count); }
  void append(uint64_t place);
  void clear();
  size_t size() const { return low_.size(); }
  uint64_t operator[](size_t i) const;

  const std::vector<uint32_t>& low() const { return low_; }
  const std::vector<uint64_t>& carries() const { return carries_; }

 private:
  std::vector<uint32_t> low_;
  std::vector<uint64_t> carries_;
};

// Called now and then, in the calling thread, with the number of bytes done. What it throws ends the scan.
using Scanned = std::function<void(uint64_t done)>;

// Returns the starts of all samples, and then the end of the file. `file` is open for reading and `size`
// bytes long; a byte-order mark is skipped. Throws Error(system) naming `path`.
LineStarts find_starts(int file, const std::string& path, uint64_t size, Split split, char delimiter,
                       size_t threads, const Scanned& scanned);

// Returns how many line ends there are before `place`; in a table also those that are a lone carriage return.
uint64_t count_lines(int file, const std::string& path, uint64_t place, Split split);

// Returns a sample without its line end. A record stays as it is, for line ends behind an open quote are
// content.
std::span<const uint8_t> without_end(std::span<const uint8_t> sample, Split split);

// Splits a record, without what follows it, into fields as Python's csv.reader does. `fields` only ever
// grows; returns how many.
size_t split_record(std::span<const uint8_t> record, char delimiter, std::vector<std::string>& fields);

// Reads exactly `size` bytes. Throws Error(system), also if the file ends before.
void read_at(int file, const std::string& path, uint64_t place, uint8_t* out, size_t size);

}  // namespace foreload
