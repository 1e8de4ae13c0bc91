// Memory that processes share: it has no name and no file, and is gone with the last process that has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace foreload {

class Segment {
 public:
  // Creates zeroed memory, whose pages take room once they are written. If the system has none that can be
  // shared, it is private (`file()` is -1). Throws Error(system) if there is none at all.
  static std::unique_ptr<Segment> create(size_t bytes);
  // Opens what another process created, by a descriptor of it, which is duplicated. Throws Error(system).
  static std::unique_ptr<Segment> open(int file);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  uint8_t* memory() const { return memory_; }
  size_t size() const { return size_; }
  int file() const { return file_; }
  // Returns the whole pages within a part to the system, for all processes; they are zero from then on.
  void discard(uint8_t* part, size_t size);

 private:
  Segment(int file, uint8_t* memory, size_t size) : file_(file), memory_(memory), size_(size) {}

  int file_;
  uint8_t* memory_;
  size_t size_;
};

// A mapped part of a file in memory; offset and size are multiples of a page. Holds no descriptor. The
// constructor throws Error(system).
class Mapping {
 public:
  Mapping(int file, size_t offset, size_t size);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* memory() const { return memory_; }
  size_t size() const { return size_; }

 private:
  uint8_t* memory_;
  size_t size_;
};

}  // namespace foreload
