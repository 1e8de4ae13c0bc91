// Huffman decoding of baseline JPEGs: most of the time that a JPEG takes.
//
// libjpeg does everything else: it asks for one MCU at a time, and this answers in its place, bit for bit the
// same, as long as the data is sound. What libjpeg makes of damage is not known here: it is only noticed. It
// is faster because stuffed bytes are taken out beforehand, so that 8 bytes are read at once without looking
// at them; because one table look-up gives code, run and value of a coefficient together; because blocks
// outside the crop are skipped, several coefficients at a time; and because, if the file has restart markers,
// an interval without a block inside the crop is not even looked at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "huffman.hpp"
#include "restart.hpp"

struct jpeg_decompress_struct;

namespace foreload {

class EntropyDecoder {
 public:
  // Takes over from libjpeg, between jpeg_start_decompress() and the first row, for entropy-coded data that
  // begins at `data`. Only iMCU columns [first, last] will be looked at. Returns false, and changes nothing,
  // if the file is not baseline with one interleaved scan, all of whose markers are there and nothing else
  // before the end marker. Until the picture ends, `info->client_data` is used.
  bool take_over(jpeg_decompress_struct* info, std::span<const uint8_t> data, int first, int last);

  // Whether what was decoded was damaged, so that libjpeg's pixels are others. What was not decoded has no
  // part in the pixels, damaged or not: each interval ends at its marker, and the picture at the end marker.
  bool is_damaged() const { return damaged_; }

 private:
  struct Block {
    const HuffmanTable* dc;
    const HuffmanTable* ac;
    int component;
  };
  // The position in an interval that is decoded as a whole.
  struct Stream {
    BitReader reader;
    const Block* block;
    int16_t* out = nullptr;  // of the current block
    uint32_t k = 64;         // coefficients of it that are known
    uint32_t seen = 0;       // of all blocks; see read_dc()
    int blocks_left = 0;     // of its MCU, after it
    unsigned mcus_left = 0;  // after that one
    std::array<int16_t, 4> last_dc{};
    const uint8_t* end = nullptr;
    bool active = false;
  };
  struct BlockReader;
  struct DecodedInterval {
    size_t number = SIZE_MAX;
    std::vector<int16_t> coefficients;
  };

  static int decode_mcu(jpeg_decompress_struct* info, int16_t (**blocks)[64]);
  // The first coefficient of a block, and the others. Into `seen` goes what is_astray() tells from.
  static int16_t read_dc(const Block& block, std::array<int16_t, 4>& last_dc, BitReader& reader,
                         uint32_t& seen);
  static void skip_rest(const HuffmanTable& ac, BitReader& reader, uint32_t& seen);

  void begin_interval();
  // Decodes the next MCU, or skips it.
  void decode(int16_t (**blocks)[64]);
  void skip();
  void end_mcu(const BitReader& reader, uint32_t seen);
  const int16_t* decoded_ahead(unsigned mcu);
  void begin_stream(Stream& stream, size_t interval);
  void begin_block(Stream& stream);
  void decode_both(Stream& a, Stream& b);
  void end_block(Stream& stream);

  std::array<HuffmanTable, 4> dc_, ac_;
  RestartIntervals intervals_;
  const uint8_t* end_ = nullptr;  // of the current interval
  std::array<Block, 10> blocks_{};
  std::array<int16_t, 4> last_dc_{};
  BitReader reader_;
  size_t interval_ = 0;
  unsigned mcus_per_interval_ = 0, mcus_left_ = 0;
  std::array<DecodedInterval, 2> ahead_;
  bool paired_ = false;    // intervals are decoded ahead
  unsigned deferred_ = 0;  // MCUs of this interval outside the crop: decoded when one inside follows
  unsigned column_ = 0, columns_ = 0, rows_ = 0, first_ = 0, last_ = 0;
  int block_count_ = 0;
  bool damaged_ = false;
};

}  // namespace foreload
