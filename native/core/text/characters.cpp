#include "characters.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "error.hpp"

namespace foreload {

namespace {

// Returns how many of the first `count` bytes, rounded down to eight, are ASCII.
size_t ascii_run(const uint8_t* text, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t word;
    std::memcpy(&word, text + i, 8);
    if (word & 0x8080808080808080U) break;
  }
  return i;
}

// Returns how many bytes the character that `lead` begins has, and the range of the second one; 0 if no
// character begins like that.
struct Form {
  int size;
  uint8_t low, high;
};

Form form_of(uint8_t lead) {
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

size_t decode_utf8(std::span<const uint8_t> text, size_t most, int64_t* out) {
  const uint8_t* const bytes = text.data();
  size_t at = 0, count = 0;
  while (at < text.size() && count < most) {
    const size_t run = ascii_run(bytes + at, std::min(text.size() - at, most - count));
    for (size_t i = 0; i < run; ++i) out[count + i] = bytes[at + i];
    at += run;
    count += run;
    if (at == text.size() || count == most) break;
    const uint8_t lead = bytes[at];
    if (lead < 0x80) {
      out[count++] = lead;
      ++at;
      continue;
    }
    const Form form = form_of(lead);
    const auto size = static_cast<size_t>(form.size);
    bool good =
        size != 0 && at + size <= text.size() && bytes[at + 1] >= form.low && bytes[at + 1] <= form.high;
    int64_t point = lead & (0x7F >> form.size);
    for (size_t i = 1; good && i < size; ++i) {
      good = (bytes[at + i] & 0xC0) == 0x80;
      point = point << 6 | (bytes[at + i] & 0x3F);
    }
    if (!good) {
      throw Error(ErrorKind::value, "not UTF-8 at byte " + std::to_string(at), {}, static_cast<int>(at));
    }
    out[count++] = point;
    at += size;
  }
  return count;
}

}  // namespace foreload
