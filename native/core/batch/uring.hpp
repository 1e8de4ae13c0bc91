// Many reads in flight from one thread, by Linux's io_uring.
#pragma once

#include <memory>

#include "read.hpp"

namespace foreload {

// Returns nullptr if the system has no io_uring, or does not grant it (as in many containers).
std::unique_ptr<Reader> make_uring_reader(bool direct, unsigned depth);

}  // namespace foreload
