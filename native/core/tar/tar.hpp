// Headers of tars (POSIX.1-1988, "ustar") and the names of their members, if they are usual ones. What is not
// (records of pax and GNU, links, damage, names that are not ASCII) is left to a full reader, which is
// slower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace foreload {

constexpr size_t kTarBlock = 512;

struct TarHeader {
  std::string_view name;  // in the block
  uint64_t size;          // of the content, less than 2^36
};

// Reads the header of a plain file with a short printable name; none if the block holds anything else.
std::optional<TarHeader> read_tar_header(const uint8_t* block);

// What a member is to samples, by WebDataset's rule.
enum class TarRole { part, none, unusual };

struct TarName {
  TarRole role;            // unusual: it leads out of the archive, or its field is called like the key
  std::string_view key;    // of the sample: up to the first dot of the last part
  std::string_view field;  // what follows the dot, as it is written
};

TarName split_tar_name(std::string_view name);

// The bytes of a member in the archive: header, content and padding.
constexpr uint64_t tar_extent(uint64_t size) {
  return kTarBlock + (size + kTarBlock - 1) / kTarBlock * kTarBlock;
}

}  // namespace foreload
