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

// On an error libjpeg jumps to `escape`; functions in between must hold nothing that needs a destructor.
struct JpegHandler {
  jpeg_error_mgr base{};
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX] = "";
  bool starved = false;  // the data ended inside the picture

  void install();
};

// Makes libjpeg read `bytes`, with an end marker behind them.
void set_source(jpeg_source_mgr& source, std::span<const uint8_t> bytes);

}  // namespace foreload

#endif
