#include "read.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "error.hpp"

namespace foreload {

namespace {

[[noreturn]] void fail(const std::string& path) {
  const int code = errno;
  throw Error(ErrorKind::system, std::strerror(code), path, code);
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail(path);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::span<const uint8_t> read_file(const std::string& path, std::vector<uint8_t>& buffer) {
  const Descriptor fd(path);
  struct stat status;
  if (::fstat(fd, &status) != 0) fail(path);
  // One byte more than the size, so that a single read both fills the buffer and sees the end.
  size_t capacity = static_cast<size_t>(status.st_size) + 1;
  size_t size = 0;
  for (;;) {
    if (buffer.size() < capacity) buffer.resize(capacity + capacity / 4);
    const ssize_t got = ::read(fd, buffer.data() + size, buffer.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path);
    if (got == 0) return {buffer.data(), size};
    size += static_cast<size_t>(got);
    // A regular file that came whole needs no second read to be told so.
    if (S_ISREG(status.st_mode) && size == static_cast<size_t>(status.st_size)) return {buffer.data(), size};
    capacity = size + 65536;
  }
}

}  // namespace foreload
