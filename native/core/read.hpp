// A file's bytes, into a buffer that the caller keeps.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace foreload {

// The whole file. The span lies in `buffer`, which only ever grows. Throws Error(system).
std::span<const uint8_t> read_file(const std::string& path, std::vector<uint8_t>& buffer);

}  // namespace foreload
