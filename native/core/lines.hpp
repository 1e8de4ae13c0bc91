// Where the samples of a text file begin: its lines, or the records of a table.
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
  filled,   // lines in which there is more than white space
  records,  // of a table: fields in quotes may hold line ends; empty lines are none
};

// Ascending places in a file, in four bytes each: the low half of each one, and where the high half goes up.
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

// Is told now and then, by the thread that calls, how many bytes are done. What it throws ends the work.
using Scanned = std::function<void(uint64_t done)>;

// The starts of all samples, and then the end of the file. `file` is open for reading and `size` bytes long;
// a byte-order mark is passed over. Throws Error(system) naming `path`.
LineStarts find_starts(int file, const std::string& path, uint64_t size, Split split, char delimiter,
                       size_t threads, const Scanned& scanned);

// How many line ends there are before `place`.
uint64_t count_lines(int file, const std::string& path, uint64_t place);

// A sample without the line end that ends it.
std::span<const uint8_t> without_end(std::span<const uint8_t> sample, Split split);

// The fields of a record, as Python's csv.reader gives them. `fields` only ever grows; returns how many.
size_t split_record(std::span<const uint8_t> record, char delimiter, std::vector<std::string>& fields);

// Reads exactly `size` bytes. Throws Error(system), also where the file ends before.
void read_at(int file, const std::string& path, uint64_t place, uint8_t* out, size_t size);

}  // namespace foreload
