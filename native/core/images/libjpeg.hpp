// Shared by all uses of libjpeg: errors that return to the caller, and reading from memory.
#pragma once

#ifdef FORELOAD_HAVE_JPEG

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <span>

// jpeglib.h needs stdio.h before it.
#include <jerror.h>
#include <jpeglib.h>

namespace foreload {

// A file may repeat scans without end, each of which takes as long as a picture; a real one has about ten.
constexpr int kMaxScans = 500;

// On an error libjpeg jumps to `escape`; functions in between must hold nothing that needs a destructor.
struct JpegHandler {
  jpeg_error_mgr base{};
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX] = "";
  bool exhausted = false;  // more bytes were wanted than there are

  // Whether libjpeg has met nothing that it had to guess.
  bool is_clean() const { return base.num_warnings == 0 && !exhausted; }

  void install();
};

// Makes libjpeg read `bytes`, with an end marker behind them; its errors must go to a JpegHandler.
void set_source(jpeg_source_mgr& source, std::span<const uint8_t> bytes);

// Whether the scans of a progressive picture, once read, gave each coefficient to its last bit. libjpeg
// smooths over what is missing, by blocks around it.
bool has_all_bits(const jpeg_decompress_struct& info);

}  // namespace foreload

#endif
