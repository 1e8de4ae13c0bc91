// Huffman decoding of progressive JPEGs, whose coefficients come in several scans, a few bits at a time:
// almost all of the time that such a JPEG takes.
//
// libjpeg reads the headers of scans, checks them, and makes pixels of coefficients; this reads what is
// between, bit for bit the same, as long as the data is sound. What libjpeg makes of damage is not known
// here: it is only noticed. It is faster for the same reasons as EntropyDecoder; and because of each block a
// word says which coefficients are not 0, which is all that a scan must know of those before it, so that
// coefficients outside the box are never stored; and because a scan is not read beyond the last row of blocks
// in the box.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "huffman.hpp"
#include "restart.hpp"
#include "scans.hpp"

struct jpeg_decompress_struct;

namespace foreload {

// Rows and columns of the picture that libjpeg gives, with the last ones.
struct Region {
  int left = 0, top = 0, right = 0, bottom = 0;
};

class ProgressiveDecoder {
 public:
  // Takes over from libjpeg within jpeg_start_decompress(), before it reads the first scan, if the file is
  // one of those above; returns whether it does. Only blocks of the region will be there. Until the picture
  // ends, `info->client_data` is used.
  bool take_over(jpeg_decompress_struct* info, const Region& region);
  // Makes libjpeg take its blocks from here; after jpeg_start_decompress().
  void begin_output(jpeg_decompress_struct* info);

  // Whether what was decoded was damaged, or in a way unusual that is left to libjpeg.
  bool is_damaged() const { return damaged_; }

  // Bytes of memory that are kept for the next picture.
  size_t memory() const;

 private:
  // The blocks of a component.
  struct Plane {
    size_t columns = 0;                                        // with those that fill up the last MCU
    size_t left = 0, top = 0, wanted_columns = 0, bottom = 0;  // of the region; `bottom` is behind it
    uint64_t given = 0;  // coefficients that scans gave; as in `nonzero`
    std::vector<uint64_t> nonzero;
    std::vector<int16_t> coefficients;  // of the blocks in the region

    // Null if it is outside of the region.
    int16_t* block(size_t row, size_t column) {
      if (row - top >= bottom - top || column - left >= wanted_columns) return nullptr;
      return coefficients.data() + ((row - top) * wanted_columns + column - left) * 64;
    }
  };

  static int consume(jpeg_decompress_struct* info);
  static int give_row(jpeg_decompress_struct* info, uint8_t*** out);

  bool read_scan(jpeg_decompress_struct* info);
  bool check_scan(const jpeg_decompress_struct& info);
  bool read_first_coefficients(const jpeg_decompress_struct& info, size_t number, size_t from, size_t to);
  bool read_others(const jpeg_decompress_struct& info, size_t number, size_t from, size_t to);
  bool load_table(const jpeg_decompress_struct& info, size_t number, Codes codes);

  std::array<HuffmanTable, 4> tables_;  // of the current scan
  RestartIntervals intervals_;
  std::array<Plane, 4> planes_;
  size_t end_row_ = 0;  // of iMCUs: the first that is not looked at
  bool damaged_ = false;
};

}  // namespace foreload
