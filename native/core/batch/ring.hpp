// The system calls of io_uring, without a library: https://kernel.dk/io_uring.pdf, io_uring(7).
#pragma once

#include <linux/io_uring.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

struct iovec;

namespace foreload {

class Ring {
 public:
  // Makes room for `entries` operations. Throws Error(system).
  explicit Ring(unsigned entries);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Returns an operation to fill in, which submit() submits. There must be room.
  io_uring_sqe& prepare(uint8_t operation, uint64_t user_data);
  // Submits what was prepared and waits until at least `least` operations have ended.
  void submit(unsigned least);
  // Takes the next operation that has ended; false if there is none.
  bool take(io_uring_cqe& ended);
  // Registers memory for READ_FIXED; false if that is refused.
  bool register_buffers(std::span<const iovec> buffers);

 private:
  struct Map {
    uint8_t* memory = nullptr;
    size_t size = 0;
    void open(int fd, size_t bytes, uint64_t offset);
    ~Map();
  };
  template <typename T>
  T* in(const Map& map, uint32_t offset) const {
    return reinterpret_cast<T*>(map.memory + offset);
  }

  int fd_ = -1;
  Map queue_, entries_, completions_;
  io_uring_params about_{};
  unsigned prepared_ = 0;
};

}  // namespace foreload
