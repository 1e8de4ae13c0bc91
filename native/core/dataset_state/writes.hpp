// Detection of writes to memory, by asking the system: comparing the memory would take a thousand times as
// long.
//
// Linux 6.11 and later mark each page that is written to after it was protected for that ("userfaultfd",
// asynchronous write protection; "PAGEMAP_SCAN": see pagemap and userfaultfd in the kernel's
// Documentation/admin-guide/mm).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace foreload {

struct Watched;

// A watch over all whole pages of some memory, which must be this process's alone.
class WriteWatch {
 public:
  enum class Seen { nothing, write, unknown };

  // Returns null where the system cannot tell: an older one, memory that is a file's or other processes' too,
  // or too many watches.
  static std::unique_ptr<WriteWatch> of(uintptr_t address, size_t size);
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  // Tells what has been seen since the last look: writes by code of this process and by the system, but not
  // what a device, or io_uring, writes to memory that is registered with it. In a process that was forked
  // since then, the first look begins anew, and what was before it is unknown. Of memory that has been
  // unmapped, it sees nothing.
  Seen look();
  // The pages: from the first byte to the one after the last.
  uintptr_t begin() const;
  uintptr_t end() const;

 private:
  explicit WriteWatch(std::unique_ptr<Watched> watched);
  std::unique_ptr<Watched> watched_;
};

}  // namespace foreload
