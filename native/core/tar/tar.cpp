#include "tar.hpp"

#include <algorithm>
#include <cstring>

namespace foreload {

namespace {

// Where the fields of a header lie.
constexpr size_t kNameBytes = 100;
constexpr size_t kSize = 124, kSizeBytes = 12;
constexpr size_t kSum = 148, kSumBytes = 8;
constexpr size_t kType = 156;
constexpr size_t kPrefix = 345;

// Reads digits between spaces up to the first zero byte or the end: the usual forms, of which no reader makes
// anything else.
std::optional<uint64_t> read_octal(const uint8_t* field, size_t bytes) {
  const uint8_t* const end = std::find(field, field + bytes, uint8_t{0});
  while (field < end && *field == ' ') ++field;
  const uint8_t* const first = field;
  uint64_t value = 0;
  for (; field < end && *field >= '0' && *field <= '7'; ++field) value = value * 8 + (*field - '0');
  if (field == first) return std::nullopt;
  while (field < end && *field == ' ') ++field;
  return field == end ? std::optional(value) : std::nullopt;
}

uint64_t sum_of(const uint8_t* begin, size_t bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes; ++i) sum += begin[i];
  return sum;
}

// Whether a part of a path is __NAME__, by which WebDataset marks members that describe others.
bool is_meta(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('/'));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

bool leads_out(std::string_view name) {
  if (name.starts_with('/')) return true;
  for (size_t at = name.find(".."); at != std::string_view::npos; at = name.find("..", at + 1)) {
    const bool begins = at == 0 || name[at - 1] == '/';
    if (begins && (at + 2 == name.size() || name[at + 2] == '/')) return true;
  }
  return false;
}

bool is_key_field(std::string_view field) {
  constexpr std::string_view kKey = "__key__";
  return std::ranges::equal(field, kKey, {}, [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
}

}  // namespace

std::optional<TarHeader> read_tar_header(const uint8_t* block) {
  if ((block[kType] != '0' && block[kType] != 0) || block[kPrefix] != 0) return std::nullopt;
  const auto size = read_octal(block + kSize, kSizeBytes);
  const auto sum = read_octal(block + kSum, kSumBytes);
  if (!size || !sum) return std::nullopt;
  // The sum of all bytes, those of the sum itself taken as spaces.
  const uint64_t rest = sum_of(block, kSum) + sum_of(block + kSum + kSumBytes, kTarBlock - kSum - kSumBytes);
  if (rest + kSumBytes * ' ' != *sum) return std::nullopt;
  const uint8_t* const end = std::find(block, block + kNameBytes, uint8_t{0});
  const bool is_printable = std::all_of(block, end, [](uint8_t c) { return c >= ' ' && c <= '~'; });
  // (In the oldest tars, a name that ends with a slash is that of a folder.)
  if (end == block || !is_printable || end[-1] == '/') return std::nullopt;
  return TarHeader{{reinterpret_cast<const char*>(block), static_cast<size_t>(end - block)}, *size};
}

TarName split_tar_name(std::string_view name) {
  if (leads_out(name)) return {TarRole::unusual, {}, {}};
  if (is_meta(name)) return {TarRole::none, {}, {}};
  const size_t slash = name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base) return {TarRole::none, {}, {}};
  const std::string_view field = name.substr(dot + 1);
  if (is_key_field(field)) return {TarRole::unusual, {}, {}};
  return {TarRole::part, name.substr(0, dot), field};
}

}  // namespace foreload
