#include "entropy.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#if defined(FORELOAD_HAVE_JPEG) && __has_include(<jpegint.h>)

// libjpeg's own headers for those who replace a part of it.
#define JPEG_INTERNALS
#include <jpeglib.h>

namespace foreload {

namespace {

// From zigzag order to rows.
constexpr uint8_t kNatural[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                  35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                  58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// More than an MCU of 10 blocks can take, so that only its end must be checked.
constexpr size_t kPadding = 10 * 64 * 4 + 64;
// The same for a block.
constexpr size_t kBlockPadding = 64 * 4 + 16;

constexpr uint32_t kRunToEnd = 64;

// The longest segments, in MCUs, that are worth decoding as a whole.
constexpr unsigned kMostAhead = 16;
constexpr int kMostValueBits = 11;

// An entry of Table::coefficient, with the bits of the code, and those of code and value together.
constexpr uint32_t entry(int size, uint32_t run, int code_bits) {
  return static_cast<uint32_t>(size) << 24 | static_cast<uint32_t>(code_bits) << 16 | run << 8 |
         static_cast<uint32_t>(code_bits + size);
}

// The entry of a symbol of an AC table (a DC table's have no run). What has no value ends the block, but for
// one that stands for 16 zeros.
constexpr uint32_t ac_entry(int symbol, int code_bits) {
  const int size = symbol & 15;
  return entry(size, size == 0 && symbol != 0xF0 ? kRunToEnd : static_cast<uint32_t>(symbol >> 4), code_bits);
}

constexpr int extended(int value, int size) {
  return size > 0 && value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

}  // namespace

// Finds where the restart segments lie.
void EntropyDecoder::split(std::span<const uint8_t> data) {
  data_ = data;
  plain_.resize(std::max(plain_.size(), data.size() + kPadding));
  segments_.clear();
  size_t begin = 0, at = 0;
  while (at < data.size()) {
    const auto* marker = static_cast<const uint8_t*>(std::memchr(data.data() + at, 0xFF, data.size() - at));
    if (marker == nullptr) break;
    at = static_cast<size_t>(marker - data.data());
    const size_t end = at;
    while (at + 1 < data.size() && data[at + 1] == 0xFF) ++at;
    if (at + 1 >= data.size()) {
      segments_.push_back({begin, end, 0});
      return;
    }
    const uint8_t code = data[at + 1];
    at += 2;
    if (code == 0) continue;
    segments_.push_back({begin, end, 0});
    if (code < JPEG_RST0 || code > JPEG_RST0 + 7) return;
    begin = at;
  }
  segments_.push_back({begin, data.size(), 0});
}

// Takes stuffed bytes out of a segment, which lies at its place in `plain_` then, with zeros behind it.
const EntropyDecoder::Segment& EntropyDecoder::plain(size_t number) {
  Segment& segment = segments_[number];
  if (segment.plain_end != 0) return segment;
  const uint8_t* from = data_.data() + segment.begin;
  const uint8_t* const end = data_.data() + segment.end;
  uint8_t* to = plain_.data() + segment.begin;
  while (from < end) {
    const auto* marker =
        static_cast<const uint8_t*>(std::memchr(from, 0xFF, static_cast<size_t>(end - from)));
    const uint8_t* const stop = marker == nullptr ? end : marker;
    std::memcpy(to, from, static_cast<size_t>(stop - from));
    to += stop - from;
    if (marker == nullptr) break;
    *to++ = 0xFF;
    while (marker + 1 < end && marker[1] == 0xFF) ++marker;
    from = marker + 2;
  }
  segment.plain_end = static_cast<size_t>(to - plain_.data());
  const bool last = number + 1 == segments_.size();
  if (last || segments_[number + 1].plain_end == 0) std::memset(to, 0, last ? kPadding : kBlockPadding);
  return segment;
}

bool EntropyDecoder::load(Table& table, const uint8_t* counts, const uint8_t* symbols, bool ac) {
  int total = 0;
  for (int length = 1; length <= 16; ++length) total += counts[length];
  if (total < 1 || total > 256) return false;
  if (table.valid && std::equal(table.counts.begin() + 1, table.counts.end(), counts + 1) &&
      std::equal(symbols, symbols + total, table.symbols.begin())) {
    return true;
  }
  table.valid = false;
  std::copy(counts, counts + 17, table.counts.begin());
  std::copy(symbols, symbols + total, table.symbols.begin());
  table.coefficient.fill(0);
  int code = 0, at = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    table.offset[static_cast<size_t>(length)] = at - code;
    for (int i = 0; i < counts[length]; ++i, ++code, ++at) {
      if (code >= 1 << length) return false;
      const int symbol = symbols[at];
      // No value of 8-bit samples is longer; and two of them fit into what a refill gives.
      if ((ac ? symbol & 15 : symbol) > kMostValueBits) return false;
      if (length > kBits) continue;
      const uint32_t found = ac ? ac_entry(symbol, length) : entry(symbol, 0, length);
      const auto first = table.coefficient.begin() + (code << (kBits - length));
      std::fill(first, first + (1 << (kBits - length)), found);
    }
    table.beyond[static_cast<size_t>(length)] = code << (16 - length);
  }
  table.beyond[17] = 1 << 30;
  if (ac) {
    constexpr size_t kMask = (size_t{1} << kPassedBits) - 1;
    for (size_t index = 0; index <= kMask; ++index) {
      uint32_t used = 0, steps = 0, ended = 0;
      while (used < kPassedBits && !ended) {
        // The bits that lie beyond the index are unknown: only codes that are within it count.
        const uint32_t found = table.coefficient[(index << used & kMask) << (kBits - kPassedBits)];
        if (found == 0 || used + (found >> 16 & 0xFF) > kPassedBits) break;
        const uint32_t run = found >> 8 & 0xFF;
        used += found & 0xFF;
        if (run == kRunToEnd) {
          ended = 1;
        } else {
          steps += run + 1;
        }
      }
      table.passed[index] = static_cast<uint16_t>(ended << 15 | std::min(steps, 127U) << 8 | used);
      if (steps > 63) table.passed[index] = 0;
    }
  }
  table.valid = true;
  return true;
}

bool EntropyDecoder::take_over(jpeg_decompress_struct* info, std::span<const uint8_t> data, int first,
                               int last, bool all) {
  if (info->progressive_mode || info->arith_code || info->data_precision != 8 ||
      info->comps_in_scan != info->num_components || info->blocks_in_MCU > 10) {
    return false;
  }
  for (int i = 0; i < info->blocks_in_MCU; ++i) {
    const int component = info->MCU_membership[i];
    const jpeg_component_info* about = info->cur_comp_info[component];
    const int dc = about->dc_tbl_no, ac = about->ac_tbl_no;
    if (dc < 0 || dc > 3 || ac < 0 || ac > 3) return false;
    const JHUFF_TBL* dc_table = info->dc_huff_tbl_ptrs[dc];
    const JHUFF_TBL* ac_table = info->ac_huff_tbl_ptrs[ac];
    if (dc_table == nullptr || ac_table == nullptr) return false;
    if (!load(dc_[static_cast<size_t>(dc)], dc_table->bits, dc_table->huffval, false)) return false;
    if (!load(ac_[static_cast<size_t>(ac)], ac_table->bits, ac_table->huffval, true)) return false;
    blocks_[static_cast<size_t>(i)] = {&dc_[static_cast<size_t>(dc)], &ac_[static_cast<size_t>(ac)],
                                       component};
  }
  block_count_ = info->blocks_in_MCU;
  split(data);
  columns_ = info->MCUs_per_row;
  rows_ = info->MCU_rows_in_scan;
  column_ = 0;
  // In a scan of one component an MCU is a block, whatever its sampling: all are looked at.
  const bool single = info->comps_in_scan == 1;
  first_ = single ? 0 : static_cast<unsigned>(std::max(0, first));
  last_ = single ? columns_ : static_cast<unsigned>(last);
  all_ = all;
  mcus_per_segment_ = info->restart_interval;
  paired_ = !all && mcus_per_segment_ > 0 && mcus_per_segment_ <= kMostAhead;
  for (Ahead& ahead : ahead_) ahead.segment = SIZE_MAX;
  segment_ = 0;
  starved_ = false;
  begin_segment();
  info->client_data = this;
  info->entropy->decode_mcu =
      reinterpret_cast<decltype(info->entropy->decode_mcu)>(&EntropyDecoder::decode_mcu);
  return true;
}

void EntropyDecoder::begin_segment() {
  mcus_left_ = mcus_per_segment_;
  put_off_ = 0;
  last_dc_.fill(0);
  exhausted_ = segment_ >= segments_.size();
  starved_ |= exhausted_;
  bits_ = {};
  bits_.next = plain_.data();
  if (exhausted_) return;
  const Segment& segment = plain(segment_);
  bits_.next = plain_.data() + segment.begin;
  end_ = plain_.data() + segment.plain_end;
}

inline void EntropyDecoder::refill(Bits& bits) {
  uint64_t word;
  std::memcpy(&word, bits.next, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  bits.bits |= word >> bits.count;
  bits.next += (63 - bits.count) >> 3;
  bits.count |= 56;
}

namespace {

template <typename Bits>
inline void drop(Bits& bits, uint32_t count) {
  bits.bits <<= count;
  bits.count -= static_cast<int>(count);
}

}  // namespace

// For a code that is longer than the tables look; one that does not exist is 0, as libjpeg has it.
int EntropyDecoder::long_symbol(const Table& table, uint64_t bits, int& length) {
  const auto code = static_cast<int32_t>(bits >> 48);
  length = kBits + 1;
  while (length <= 16 && code >= table.beyond[static_cast<size_t>(length)]) ++length;
  if (length > 16) {
    length = 16;
    return 0;
  }
  return table
      .symbols[static_cast<size_t>((code >> (16 - length)) + table.offset[static_cast<size_t>(length)]) &
               255];
}

uint32_t EntropyDecoder::long_code(const Table& ac, uint64_t bits) {
  int length;
  const int symbol = long_symbol(ac, bits, length);
  return ac_entry(symbol, length);
}

// What changes from coefficient to coefficient, in registers until the block ends.
struct EntropyDecoder::Hot {
  explicit Hot(const Lane& lane) : Hot(lane.bits, *lane.block->ac, lane.out, lane.k) {}
  Hot(const Bits& bits_, const Table& ac_, int16_t* out_, uint32_t k_)
      : bits(bits_), k(k_), out(out_), ac(&ac_) {}

  Bits bits;
  uint32_t k;
  int16_t* out;
  const Table* ac;
};

// The next coefficient; false at the block's end. Two need no refill between them.
inline __attribute__((always_inline)) bool EntropyDecoder::step(Hot& hot) {
  uint32_t found = hot.ac->coefficient[hot.bits.bits >> (64 - kBits)];
  if (__builtin_expect(found == 0, 0)) found = long_code(*hot.ac, hot.bits.bits);
  // No branch on the size: it is as good as random, and a wrong guess costs more than all of this.
  const uint32_t size = found >> 24;
  const uint64_t tail = hot.bits.bits << (found >> 16 & 0xFF);
  const auto positive = static_cast<int32_t>((tail >> 1) >> (63 - size));
  const auto negative = static_cast<int32_t>(~(static_cast<int64_t>(tail) >> 63));
  drop(hot.bits, found & 0xFF);
  hot.k += found >> 8 & 0xFF;
  if (hot.k > 63) return false;
  hot.out[kNatural[hot.k]] = static_cast<int16_t>(positive + (negative & (1 - (1 << size))));
  return ++hot.k < 64;
}

// The rest of the block.
inline __attribute__((always_inline)) void EntropyDecoder::read_rest(Hot& hot) {
  do {
    refill(hot.bits);
  } while (step(hot) && step(hot));
}

void EntropyDecoder::pass_block(const Table& ac, Bits& state) {
  Bits bits = state;
  uint32_t k = 1;
  for (;;) {
    refill(bits);
    const uint32_t found = ac.passed[bits.bits >> (64 - kPassedBits)];
    const uint32_t steps = found >> 8 & 0x7F;
    if ((found & 0xFF) != 0 && k + steps <= 63) {
      drop(bits, found & 0xFF);
      k += steps;
      if (found >> 15) break;
      continue;
    }
    uint32_t one = ac.coefficient[bits.bits >> (64 - kBits)];
    if (one == 0) one = long_code(ac, bits.bits);
    drop(bits, one & 0xFF);
    k += (one >> 8 & 0xFF) + 1;
    if (k > 63) break;
  }
  state = bits;
}

int EntropyDecoder::decode_mcu(jpeg_decompress_struct* info, int16_t (**mcu)[64]) {
  auto& self = *static_cast<EntropyDecoder*>(info->client_data);
  if (self.mcus_per_segment_ != 0) {
    if (self.mcus_left_ == 0) {
      ++self.segment_;
      self.begin_segment();
    }
    --self.mcus_left_;
  }
  const bool wanted = mcu != nullptr && self.column_ >= self.first_ && self.column_ <= self.last_;
  if (++self.column_ == self.columns_) self.column_ = 0;
  if (!wanted && !self.all_) {
    ++self.put_off_;
    return TRUE;
  }
  if (self.paired_) {
    const int16_t* from = self.decoded_ahead(self.mcus_per_segment_ - 1 - self.mcus_left_);
    for (int i = 0; i < self.block_count_; ++i, from += 64) std::memcpy(*mcu[i], from, sizeof(*mcu[i]));
    return TRUE;
  }
  for (; self.put_off_ > 0; --self.put_off_) self.decode(nullptr);
  self.decode(wanted ? mcu : nullptr);
  return TRUE;
}

// The blocks of an MCU of the present segment, which is decoded with the next one if that is wanted too.
const int16_t* EntropyDecoder::decoded_ahead(unsigned mcu) {
  Ahead& ahead = ahead_[segment_ & 1];
  if (ahead.segment != segment_) {
    Lane a, b;
    begin_lane(a, segment_);
    const size_t next = (segment_ + 1) * mcus_per_segment_;
    const size_t here = segment_ * mcus_per_segment_ + mcu;
    if (next / columns_ == here / columns_ && next % columns_ <= last_) begin_lane(b, segment_ + 1);
    if (b.active) decode_both(a, b);
    for (Lane* lane : {&a, &b}) {
      while (lane->active) {
        Hot hot(*lane);
        read_rest(hot);
        lane->bits = hot.bits;
        end_block(*lane);
      }
    }
  }
  return ahead.coefficients.data() + size_t{mcu} * static_cast<size_t>(block_count_) * 64;
}

void EntropyDecoder::decode_both(Lane& a, Lane& b) {
  Hot x(a), y(b);
  const auto next_block = [this](Lane& lane, Hot& hot) {
    lane.bits = hot.bits;
    end_block(lane);
    if (lane.active) hot = Hot(lane);
    return lane.active;
  };
  for (;;) {
    refill(x.bits);
    refill(y.bits);
    bool more_x = step(x), more_y = step(y);
    if (more_x && more_y) {
      more_x = step(x);
      more_y = step(y);
    }
    if (more_x && more_y) continue;
    const bool both = (more_x || next_block(a, x)) & (more_y || next_block(b, y));
    if (!both) break;
  }
  if (a.active) a.bits = x.bits, a.k = x.k;
  if (b.active) b.bits = y.bits, b.k = y.k;
}

void EntropyDecoder::begin_lane(Lane& lane, size_t segment) {
  Ahead& ahead = ahead_[segment & 1];
  ahead.segment = segment;
  ahead.coefficients.assign(size_t{mcus_per_segment_} * static_cast<size_t>(block_count_) * 64, 0);
  if (segment >= segments_.size()) {
    starved_ = true;
    return;
  }
  const Segment& found = plain(segment);
  lane.bits.next = plain_.data() + found.begin;
  lane.end = plain_.data() + found.plain_end;
  lane.out = ahead.coefficients.data();
  lane.block = blocks_.data();
  lane.left = block_count_ - 1;
  // The last segment may be shorter.
  const size_t rest = size_t{columns_} * rows_ - segment * mcus_per_segment_;
  lane.mcus = static_cast<unsigned>(std::min<size_t>(mcus_per_segment_, rest)) - 1;
  lane.active = true;
  begin_block(lane);
}

inline void EntropyDecoder::begin_block(Lane& lane) {
  Bits& bits = lane.bits;
  refill(bits);
  const uint32_t found = lane.block->dc->coefficient[bits.bits >> (64 - kBits)];
  int length = static_cast<int>(found >> 16 & 0xFF);
  const int size =
      found != 0 ? static_cast<int>(found >> 24) : long_symbol(*lane.block->dc, bits.bits, length);
  drop(bits, static_cast<uint32_t>(length));
  const int difference = size == 0 ? 0 : extended(static_cast<int>(bits.bits >> (64 - size)), size);
  drop(bits, static_cast<uint32_t>(size));
  int& dc = lane.last_dc[static_cast<size_t>(lane.block->component)];
  dc = static_cast<int16_t>(dc + difference);
  lane.out[0] = static_cast<int16_t>(dc);
  lane.k = 1;
}

void EntropyDecoder::end_block(Lane& lane) {
  lane.out += 64;
  ++lane.block;
  if ((lane.bits.next - lane.end) * 8 > lane.bits.count) {
    starved_ = true;
    lane.active = false;
    return;
  }
  if (lane.left-- == 0) {
    if (lane.mcus-- == 0) {
      lane.active = false;
      return;
    }
    lane.block = blocks_.data();
    lane.left = block_count_ - 1;
  }
  begin_block(lane);
}

// The next MCU, or past it where there are no blocks.
void EntropyDecoder::decode(int16_t (**mcu)[64]) {
  if (exhausted_) return;
  Bits& bits = bits_;
  for (int i = 0; i < block_count_; ++i) {
    const Block& block = blocks_[static_cast<size_t>(i)];
    refill(bits);
    const uint32_t found = block.dc->coefficient[bits.bits >> (64 - kBits)];
    int length = static_cast<int>(found >> 16 & 0xFF);
    const int size = found != 0 ? static_cast<int>(found >> 24) : long_symbol(*block.dc, bits.bits, length);
    drop(bits, static_cast<uint32_t>(length));
    const int difference = size == 0 ? 0 : extended(static_cast<int>(bits.bits >> (64 - size)), size);
    drop(bits, static_cast<uint32_t>(size));
    // Damaged files may drive it out of range: it wraps, as it would in the 16 bits that it is stored in.
    int& dc = last_dc_[static_cast<size_t>(block.component)];
    dc = static_cast<int16_t>(dc + difference);
    if (mcu != nullptr) {
      int16_t* out = *mcu[i];
      out[0] = static_cast<int16_t>(dc);
      Hot hot(bits, *block.ac, out, 1);
      read_rest(hot);
      bits = hot.bits;
    } else {
      pass_block(*block.ac, bits);
    }
  }
  if ((bits.next - end_) * 8 > bits.count) exhausted_ = starved_ = true;
}

}  // namespace foreload

#else

namespace foreload {

bool EntropyDecoder::take_over(jpeg_decompress_struct*, std::span<const uint8_t>, int, int, bool) {
  return false;
}

}  // namespace foreload

#endif
