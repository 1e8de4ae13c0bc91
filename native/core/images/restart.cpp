#include "restart.hpp"

#include <algorithm>
#include <cstring>

namespace foreload {

namespace {

constexpr uint8_t kFirstRestart = 0xD0, kLastRestart = 0xD7, kEndOfImage = 0xD9;

// More than an MCU of 10 blocks can take, so that only its end must be checked.
constexpr size_t kPadding = 10 * 64 * 4 + 64;
// The same for a block.
constexpr size_t kBlockPadding = 64 * 4 + 16;

const uint8_t* find_marker(const uint8_t* begin, const uint8_t* end) {
  return static_cast<const uint8_t*>(std::memchr(begin, 0xFF, static_cast<size_t>(end - begin)));
}

}  // namespace

void RestartIntervals::find(std::span<const uint8_t> data) {
  data_ = data;
  plain_.resize(std::max(plain_.size(), data.size() + kPadding));
  intervals_.clear();
  in_order_ = 0;
  is_marked_ = is_ended_ = is_filled_ = false;
  bool in_order = true;
  const auto add = [&](size_t from, size_t to) {
    intervals_.push_back({from, to, 0});
    if (in_order) ++in_order_;
  };
  size_t begin = 0, at = 0;
  while (at < data.size()) {
    const uint8_t* const marker = find_marker(data.data() + at, data.data() + data.size());
    if (marker == nullptr) break;
    at = static_cast<size_t>(marker - data.data());
    const size_t end = at;
    while (at + 1 < data.size() && data[at + 1] == 0xFF) ++at;
    const bool filled = at > end;
    if (at + 1 >= data.size()) {
      add(begin, end);
      return;
    }
    const uint8_t code = data[at + 1];
    at += 2;
    if (code == 0) {
      is_filled_ |= filled;
      continue;
    }
    add(begin, end);
    if (code < kFirstRestart || code > kLastRestart) {
      is_marked_ = true;
      is_ended_ = code == kEndOfImage;
      return;
    }
    in_order = in_order && code == kFirstRestart + (intervals_.size() - 1) % 8;
    begin = at;
  }
  add(begin, data.size());
}

std::span<const uint8_t> RestartIntervals::unstuffed(size_t number) {
  Interval& interval = intervals_[number];
  uint8_t* const begin = plain_.data() + interval.begin;
  if (interval.plain_end != 0) return {begin, plain_.data() + interval.plain_end};
  const uint8_t* from = data_.data() + interval.begin;
  const uint8_t* const end = data_.data() + interval.end;
  uint8_t* to = begin;
  while (from < end) {
    const uint8_t* marker = find_marker(from, end);
    const uint8_t* const stop = marker == nullptr ? end : marker;
    std::memcpy(to, from, static_cast<size_t>(stop - from));
    to += stop - from;
    if (marker == nullptr) break;
    *to++ = 0xFF;
    while (marker + 1 < end && marker[1] == 0xFF) ++marker;
    from = marker + 2;
  }
  interval.plain_end = static_cast<size_t>(to - plain_.data());
  // Zeros behind it, unless the next one is there already.
  const bool last = number + 1 == intervals_.size();
  if (last || intervals_[number + 1].plain_end == 0) std::memset(to, 0, last ? kPadding : kBlockPadding);
  return {begin, to};
}

}  // namespace foreload
