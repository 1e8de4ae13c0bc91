// Many reads in flight from one thread, by Linux's io_uring.
#pragma once

#include <memory>

#include "read.hpp"

namespace foreload {

// nullptr where the system has no io_uring, or does not grant it (as many containers' seccomp profiles).
std::unique_ptr<Reader> make_uring_reader(bool direct, unsigned depth);

}  // namespace foreload
