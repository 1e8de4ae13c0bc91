#include "entropy.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "scans.hpp"

#if defined(FORELOAD_HAVE_JPEG) && __has_include(<jpegint.h>)

// libjpeg's own headers for programs that replace a part of it.
#define JPEG_INTERNALS
#include <jpeglib.h>

namespace foreload {

namespace {

// The longest intervals, in MCUs, that are worth decoding as a whole.
constexpr unsigned kMaxMcusAhead = 16;

}  // namespace

// What changes from coefficient to coefficient, in registers until the block ends.
struct EntropyDecoder::BlockReader {
  explicit BlockReader(const Stream& stream)
      : BlockReader(stream.reader, *stream.block->ac, stream.out, stream.k) {}
  BlockReader(const BitReader& reader_, const HuffmanTable& ac_, int16_t* out_, uint32_t k_)
      : reader(reader_), k(k_), out(out_), ac(&ac_) {}

  // Reads the next coefficient; false at the block's end. Two need no refill between them.
  __attribute__((always_inline)) bool step() {
    const uint32_t entry = ac->entry(reader);
    const int value = read_value(entry, reader);
    k += entry >> 8 & 0xFF;
    if (k > 64) return false;
    out[kNatural[k - 1]] = static_cast<int16_t>(value);
    return k < 64;
  }

  // The rest of the block.
  __attribute__((always_inline)) void read_rest() {
    do {
      reader.refill();
    } while (step() && step());
  }

  BitReader reader;
  uint32_t k;
  int16_t* out;
  const HuffmanTable* ac;
};

bool EntropyDecoder::take_over(jpeg_decompress_struct* info, std::span<const uint8_t> data, int first,
                               int last) {
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
    if (!dc_[static_cast<size_t>(dc)].load(dc_table->bits, dc_table->huffval, Codes::dc)) return false;
    if (!ac_[static_cast<size_t>(ac)].load(ac_table->bits, ac_table->huffval, Codes::ac)) return false;
    blocks_[static_cast<size_t>(i)] = {&dc_[static_cast<size_t>(dc)], &ac_[static_cast<size_t>(ac)],
                                       component};
  }
  block_count_ = info->blocks_in_MCU;
  columns_ = info->MCUs_per_row;
  rows_ = info->MCU_rows_in_scan;
  mcus_per_interval_ = info->restart_interval;
  intervals_.find(data);
  const size_t mcus = size_t{columns_} * rows_;
  const size_t interval = mcus_per_interval_ > 0 ? mcus_per_interval_ : mcus;
  if (!intervals_.has((mcus + interval - 1) / interval)) return false;
  column_ = 0;
  // In a scan of one component an MCU is a block, whatever its sampling: all are looked at.
  const bool single = info->comps_in_scan == 1;
  first_ = single ? 0 : static_cast<unsigned>(std::max(0, first));
  last_ = single ? columns_ : static_cast<unsigned>(last);
  paired_ = mcus_per_interval_ > 0 && mcus_per_interval_ <= kMaxMcusAhead;
  for (DecodedInterval& ahead : ahead_) ahead.number = SIZE_MAX;
  interval_ = 0;
  // libjpeg reads fill bytes as data or as a marker, by how many bytes it has been given at a time.
  damaged_ = intervals_.is_filled();
  begin_interval();
  info->client_data = this;
  info->entropy->decode_mcu =
      reinterpret_cast<decltype(info->entropy->decode_mcu)>(&EntropyDecoder::decode_mcu);
  return true;
}

void EntropyDecoder::begin_interval() {
  mcus_left_ = mcus_per_interval_;
  deferred_ = 0;
  last_dc_.fill(0);
  reader_ = {};
  const std::span<const uint8_t> bytes = intervals_.unstuffed(interval_);
  reader_.next = bytes.data();
  end_ = bytes.data() + bytes.size();
}

inline int16_t EntropyDecoder::read_dc(const Block& block, std::array<int16_t, 4>& last_dc, BitReader& reader,
                                       uint32_t& seen) {
  reader.refill();
  const uint32_t entry = block.dc->entry(reader);
  seen |= entry >> 8;
  // Damaged files may drive it out of range: it wraps, as it would in the 16 bits that it is stored in.
  int16_t& dc = last_dc[static_cast<size_t>(block.component)];
  dc = static_cast<int16_t>(dc + read_value(entry, reader));
  return dc;
}

inline void EntropyDecoder::skip_rest(const HuffmanTable& ac, BitReader& reader, uint32_t& seen) {
  uint32_t k = 1;
  for (;;) {
    reader.refill();
    const uint32_t found = ac.skip(reader);
    const uint32_t steps = found >> 8 & 0x7F;
    if ((found & 0xFF) != 0 && k + steps <= 63) {
      reader.drop(found & 0xFF);
      k += steps;
      if (found >> 15) return;
      continue;
    }
    const uint32_t one = ac.entry(reader);
    reader.drop(one & 0xFF);
    k += one >> 8 & 0xFF;
    if (k > 63) break;
  }
  seen |= k - 1;
}

int EntropyDecoder::decode_mcu(jpeg_decompress_struct* info, int16_t (**mcu)[64]) {
  auto& self = *static_cast<EntropyDecoder*>(info->client_data);
  if (self.mcus_per_interval_ != 0) {
    if (self.mcus_left_ == 0) {
      ++self.interval_;
      self.begin_interval();
    }
    --self.mcus_left_;
  }
  const bool wanted = mcu != nullptr && self.column_ >= self.first_ && self.column_ <= self.last_;
  if (++self.column_ == self.columns_) self.column_ = 0;
  if (!wanted) {
    ++self.deferred_;
    return TRUE;
  }
  if (self.paired_) {
    const int16_t* from = self.decoded_ahead(self.mcus_per_interval_ - 1 - self.mcus_left_);
    for (int i = 0; i < self.block_count_; ++i, from += 64) std::memcpy(*mcu[i], from, sizeof(*mcu[i]));
    return TRUE;
  }
  for (; self.deferred_ > 0; --self.deferred_) self.skip();
  self.decode(mcu);
  return TRUE;
}

// Returns the blocks of an MCU of the current interval, which is decoded as a whole, in turns with the next
// one if that has blocks inside the crop too: each waits for its own bits, so that two take less than twice
// the time.
const int16_t* EntropyDecoder::decoded_ahead(unsigned mcu) {
  DecodedInterval& ahead = ahead_[interval_ & 1];
  if (ahead.number != interval_) {
    Stream a, b;
    begin_stream(a, interval_);
    const size_t next = (interval_ + 1) * mcus_per_interval_;
    const size_t here = interval_ * mcus_per_interval_ + mcu;
    if (next / columns_ == here / columns_ && next % columns_ <= last_) begin_stream(b, interval_ + 1);
    if (b.active) decode_both(a, b);
    for (Stream* stream : {&a, &b}) {
      while (stream->active) {
        BlockReader block(*stream);
        block.read_rest();
        stream->seen |= block.k - 1;
        stream->reader = block.reader;
        end_block(*stream);
      }
    }
    damaged_ |= HuffmanTable::is_astray(a.seen | b.seen);
  }
  return ahead.coefficients.data() + size_t{mcu} * static_cast<size_t>(block_count_) * 64;
}

void EntropyDecoder::decode_both(Stream& a, Stream& b) {
  BlockReader x(a), y(b);
  const auto next_block = [this](Stream& stream, BlockReader& block) {
    stream.seen |= block.k - 1;
    stream.reader = block.reader;
    end_block(stream);
    if (stream.active) block = BlockReader(stream);
    return stream.active;
  };
  for (;;) {
    x.reader.refill();
    y.reader.refill();
    bool more_x = x.step(), more_y = y.step();
    if (more_x && more_y) {
      more_x = x.step();
      more_y = y.step();
    }
    if (more_x && more_y) continue;
    const bool both = (more_x || next_block(a, x)) & (more_y || next_block(b, y));
    if (!both) break;
  }
  if (a.active) a.reader = x.reader, a.k = x.k;
  if (b.active) b.reader = y.reader, b.k = y.k;
}

void EntropyDecoder::begin_stream(Stream& stream, size_t interval) {
  DecodedInterval& ahead = ahead_[interval & 1];
  ahead.number = interval;
  ahead.coefficients.assign(size_t{mcus_per_interval_} * static_cast<size_t>(block_count_) * 64, 0);
  const std::span<const uint8_t> bytes = intervals_.unstuffed(interval);
  stream.reader.next = bytes.data();
  stream.end = bytes.data() + bytes.size();
  stream.out = ahead.coefficients.data();
  stream.block = blocks_.data();
  stream.blocks_left = block_count_ - 1;
  // The last interval may be shorter.
  const size_t rest = size_t{columns_} * rows_ - interval * mcus_per_interval_;
  stream.mcus_left = static_cast<unsigned>(std::min<size_t>(mcus_per_interval_, rest)) - 1;
  stream.active = true;
  begin_block(stream);
}

inline void EntropyDecoder::begin_block(Stream& stream) {
  stream.out[0] = read_dc(*stream.block, stream.last_dc, stream.reader, stream.seen);
  stream.k = 1;
}

void EntropyDecoder::end_block(Stream& stream) {
  stream.out += 64;
  ++stream.block;
  if (stream.reader.is_past(stream.end)) {
    damaged_ = true;
    stream.active = false;
    return;
  }
  if (stream.blocks_left-- == 0) {
    if (stream.mcus_left-- == 0) {
      stream.active = false;
      return;
    }
    stream.block = blocks_.data();
    stream.blocks_left = block_count_ - 1;
  }
  begin_block(stream);
}

void EntropyDecoder::decode(int16_t (**mcu)[64]) {
  if (damaged_) return;
  // A copy, here and in skip(), because a member would be written back to memory at every block.
  BitReader reader = reader_;
  uint32_t seen = 0;
  for (int i = 0; i < block_count_; ++i) {
    const Block& block = blocks_[static_cast<size_t>(i)];
    int16_t* const out = *mcu[i];
    out[0] = read_dc(block, last_dc_, reader, seen);
    BlockReader coefficients(reader, *block.ac, out, 1);
    coefficients.read_rest();
    seen |= coefficients.k - 1;
    reader = coefficients.reader;
  }
  end_mcu(reader, seen);
}

void EntropyDecoder::skip() {
  if (damaged_) return;
  BitReader reader = reader_;
  uint32_t seen = 0;
  for (int i = 0; i < block_count_; ++i) {
    const Block& block = blocks_[static_cast<size_t>(i)];
    read_dc(block, last_dc_, reader, seen);
    skip_rest(*block.ac, reader, seen);
  }
  end_mcu(reader, seen);
}

inline void EntropyDecoder::end_mcu(const BitReader& reader, uint32_t seen) {
  reader_ = reader;
  if (HuffmanTable::is_astray(seen) || reader.is_past(end_)) damaged_ = true;
}

}  // namespace foreload

#else

namespace foreload {

bool EntropyDecoder::take_over(jpeg_decompress_struct*, std::span<const uint8_t>, int, int) {
  return false;
}

}  // namespace foreload

#endif
