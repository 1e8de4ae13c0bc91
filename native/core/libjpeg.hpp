// What all users of libjpeg need: errors that come back, and bytes in memory to read from.
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

// An error of libjpeg's jumps to `escape`; what lies between must hold nothing that needs a destructor.
struct JpegHandler {
  jpeg_error_mgr base{};
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX] = "";
  bool starved = false;  // data ended inside the picture

  void listen();
};

// Lets libjpeg read `bytes`, which end as a picture does.
void listen(jpeg_source_mgr& source, std::span<const uint8_t> bytes);

}  // namespace foreload

#endif
