// Direct reads: past the page cache, by O_DIRECT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace foreload {

// O_DIRECT wants offsets, lengths and memory to be multiples of this, or less, on any disk.
constexpr uint64_t kDirectBlock = 4096;

constexpr uint64_t whole_blocks(uint64_t size) {
  return (size + kDirectBlock - 1) / kDirectBlock * kDirectBlock;
}

// Memory aligned for O_DIRECT, which only ever grows.
class AlignedBuffer {
 public:
  uint8_t* data() const { return memory_.get(); }
  size_t size() const { return size_; }
  // Makes room for that many bytes; if it must grow, what was in it is lost.
  void reserve(size_t size);

 private:
  struct Free {
    void operator()(uint8_t* memory) const;
  };
  std::unique_ptr<uint8_t, Free> memory_;
  size_t size_ = 0;
};

// Returns why direct reads of a file would go through the page cache; empty if they do not, or if it cannot
// be opened. Tries to read a block.
std::string direct_problem(const std::string& path);

}  // namespace foreload
