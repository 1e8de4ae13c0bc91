// libjpeg-turbo, asked for as little as will do: a header, or the pixels of one box.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace foreload {

struct Box {
  int x = 0, y = 0, width = 0, height = 0;
};

// RGB bytes; pixel (x, y) is at pixels + y * stride + 3 * x.
struct Pixels {
  const uint8_t* pixels = nullptr;
  size_t stride = 0;
};

// The library that was compiled in, e.g. "libjpeg-turbo 2.1.5"; empty without one.
std::string jpeg_library();

inline bool looks_like_jpeg(std::span<const uint8_t> bytes) {
  return bytes.size() > 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

// One per thread; it keeps its memory from image to image.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header of a JPEG whose bytes stay until decode() is done. Returns false where this decoder
  // gives no RGB (CMYK, YCCK, 12 bits, ...). Throws Error(decode).
  bool open(std::span<const uint8_t> bytes);
  int width() const;
  int height() const;

  // The pixels of `box` of the image divided by `reduction` (1, 2, 4, 8), valid until the next call;
  // pixel (0, 0) is the corner of the box. The same pixels as a full decode gives. Throws Error(decode).
  Pixels decode(const Box& box, int reduction);

  // Whether the image is stored with a colour for each 2 x 2 pixels, after open().
  bool has_planes() const;
  // The whole image before its colours are spread, to planes_bytes() of memory. Throws Error(decode).
  void decode_planes(uint8_t* memory);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foreload
