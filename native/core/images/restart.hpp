// The restart intervals of a JPEG's picture data, each found and made ready without looking at those before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace foreload {

class RestartIntervals {
 public:
  // Finds them in entropy-coded data, which must outlive its use here. Without restart markers there is one.
  void find(std::span<const uint8_t> data);
  // Whether there are at least so many, with the right markers between them, and the image's end behind them.
  bool has(size_t count) const { return is_ended_ && in_order_ >= count; }
  // Whether there are exactly so many, with the right markers between them, and any other marker behind them.
  bool are(size_t count) const { return is_marked_ && in_order_ == count && intervals_.size() == count; }
  // Where in the data they end.
  size_t end() const { return intervals_.empty() ? 0 : intervals_.back().end; }
  // Whether there are fill bytes before a stuffed zero, which belong before markers only.
  bool is_filled() const { return is_filled_; }

  // An interval without the bytes stuffed into it. Behind it can be read what a block of codes takes at most;
  // behind the last one, what an MCU takes.
  std::span<const uint8_t> unstuffed(size_t number);

 private:
  struct Interval {
    size_t begin, end;  // in the data
    size_t plain_end;   // in `plain_`; 0 before it is there
  };

  std::span<const uint8_t> data_;
  std::vector<uint8_t> plain_;  // each interval where it begins in the data
  std::vector<Interval> intervals_;
  size_t in_order_ = 0;  // intervals before a restart marker that is not the next one
  bool is_marked_ = false, is_ended_ = false, is_filled_ = false;
};

}  // namespace foreload
