#include "tar.hpp"

#include <cstdio>
#include <cstring>
#include <memory>

#include "crc.hpp"
#include "path.hpp"

namespace counts {

namespace {

constexpr size_t kMembers = 1 << 10;

std::vector<uint8_t> headers() {
  std::vector<uint8_t> blocks(kMembers * foreload::kTarBlock, 0);
  for (size_t i = 0; i < kMembers; ++i) {
    auto* const block = reinterpret_cast<char*>(blocks.data() + i * foreload::kTarBlock);
    std::snprintf(block, 100, "train/%06zu.%s", i / 2, i % 2 ? "cls" : "jpg");
    std::snprintf(block + 124, 12, "%011zo", 70'000 + i);
    block[156] = '0';
    std::memset(block + 148, ' ', 8);
    unsigned sum = 0;
    for (size_t j = 0; j < foreload::kTarBlock; ++j) sum += static_cast<uint8_t>(block[j]);
    std::snprintf(block + 148, 8, "%06o", sum);
  }
  return blocks;
}

}  // namespace

std::vector<Path> tar_paths() {
  return {{"header of a tar's member", kMembers, [] {
             struct Data {
               std::vector<uint8_t> blocks = headers();
               uint64_t bytes = 0;
             };
             const auto data = std::make_shared<Data>();
             return [data] {
               for (size_t i = 0; i < kMembers; ++i) {
                 const auto header = foreload::read_tar_header(data->blocks.data() + i * foreload::kTarBlock);
                 const auto name = foreload::split_tar_name(header->name);
                 data->bytes += foreload::tar_extent(header->size) + foreload::crc32(0, name.key);
               }
             };
           }}};
}

}  // namespace counts
