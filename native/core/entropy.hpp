// Huffman decoding of baseline JPEGs: most of the time that a JPEG takes.
//
// libjpeg keeps everything else: it asks for one MCU at a time, and this answers in its place, bit for bit
// the same. It is faster because stuffed bytes are taken out beforehand, so that 8 bytes are read at once
// without looking at them; because one table look-up gives code, run and value of a coefficient together;
// because blocks that nobody asked for are passed over, several coefficients at a time; and because, where
// the file has restart markers, a segment in which nobody asks for a block is not even looked at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

struct jpeg_decompress_struct;

namespace foreload {

class EntropyDecoder {
 public:
  // Takes over from libjpeg, between jpeg_start_decompress() and the first row, for entropy-coded data that
  // begins at `data`. Only iMCU columns [first, last] will be looked at. Returns false, and changes nothing,
  // where the file is not baseline with one interleaved scan. `info->client_data` is used while it lasts.
  // `all`: look even where nobody asks for anything, so that data which ends too early is noticed.
  bool take_over(jpeg_decompress_struct* info, std::span<const uint8_t> data, int first, int last, bool all);

  // Whether the data ended before the picture did.
  bool starved() const { return starved_; }

 private:
  // More bits find more, and take longer to prepare where every file has tables of its own.
  static constexpr int kBits = 11, kPassedBits = 10;
  static constexpr size_t kEntries = size_t{1} << kBits;

  // A Huffman table as its file gives it, and what it says of the next bits.
  struct Table {
    std::array<uint8_t, 17> counts{};
    std::array<uint8_t, 256> symbols{};
    bool valid = false;
    // (size of value << 24) | (bits of code << 16) | (run << 8) | bits of both; 0: a longer code.
    std::array<uint32_t, kEntries> coefficient;
    // For as many coefficients as fit: (end of block << 15) | (steps << 8) | bits; 0: none fits.
    std::array<uint16_t, size_t{1} << kPassedBits> passed;
    std::array<int32_t, 18> beyond;  // first code of a length that is too large, left-aligned to 16 bits
    std::array<int32_t, 17> offset;  // from code to symbol
  };
  struct Bits {
    uint64_t bits = 0;  // left-aligned
    int count = 0;
    const uint8_t* next = nullptr;
  };
  struct Block {
    const Table* dc;
    const Table* ac;
    int component;
  };

  // What lies between two restart markers: offsets in the data, and where it ends in `plain_`, 0 before it is
  // there.
  struct Segment {
    size_t begin, end, plain_end;
  };
  // One of two segments that are decoded in turns.
  struct Lane {
    Bits bits;
    const Block* block;
    int16_t* out = nullptr;  // of the present block
    uint32_t k = 64;         // its next coefficient
    int left = 0;            // blocks of its MCU behind it
    unsigned mcus = 0;       // MCUs behind that
    std::array<int, 4> last_dc{};
    const uint8_t* end = nullptr;
    bool active = false;
  };
  struct Hot;
  // A decoded segment.
  struct Ahead {
    size_t segment = SIZE_MAX;
    std::vector<int16_t> coefficients;
  };

  static int decode_mcu(jpeg_decompress_struct* info, int16_t (**blocks)[64]);
  static void refill(Bits& bits);
  static int long_symbol(const Table& table, uint64_t bits, int& length);
  static uint32_t long_code(const Table& ac, uint64_t bits);
  static void pass_block(const Table& ac, Bits& bits);

  bool load(Table& table, const uint8_t* counts, const uint8_t* symbols, bool ac);
  void split(std::span<const uint8_t> data);
  const Segment& plain(size_t number);
  void begin_segment();
  void decode(int16_t (**blocks)[64]);
  const int16_t* decoded_ahead(unsigned mcu);
  void begin_lane(Lane& lane, size_t segment);
  void begin_block(Lane& lane);
  void decode_both(Lane& a, Lane& b);
  static bool step(Hot& hot);
  static void read_rest(Hot& hot);
  void end_block(Lane& lane);

  std::array<Table, 4> dc_, ac_;
  std::span<const uint8_t> data_;
  std::vector<uint8_t> plain_;  // segments without stuffing, each where it lies in the data
  std::vector<Segment> segments_;
  const uint8_t* end_ = nullptr;  // of the present segment
  std::array<Block, 10> blocks_{};
  std::array<int, 4> last_dc_{};
  Bits bits_;
  size_t segment_ = 0;
  unsigned mcus_per_segment_ = 0, mcus_left_ = 0;
  std::array<Ahead, 2> ahead_;
  bool paired_ = false;   // segments are decoded ahead
  unsigned put_off_ = 0;  // MCUs of this segment that nobody asked for: decoded when a later one is
  unsigned column_ = 0, columns_ = 0, rows_ = 0, first_ = 0, last_ = 0;
  int block_count_ = 0;
  bool all_ = false, exhausted_ = false, starved_ = false;
};

}  // namespace foreload
