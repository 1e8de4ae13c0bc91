// A JPEG decoder, by libjpeg-turbo, that decodes no more than is needed: a header, or the pixels of one box.
//
// It decodes sound files, and leaves every other one to whoever asked: what is made of damage differs between
// decoders, and depends on more of the file than the box. A file is sound if libjpeg has no warning about
// what it read of it, and if it does not end before its end marker does; damage that a full decode would pass
// over without an error may lie where nothing was decoded, since none of it reaches the box.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace foreload {

struct Box {
  int x = 0, y = 0, width = 0, height = 0;
};

// RGB pixels: pixel (x, y) is at pixels + y * stride + 3 * x. If `plane` is not 0, each colour is in a plane
// of its own: colour c is at pixels + y * stride + c * plane + x.
struct Pixels {
  const uint8_t* pixels = nullptr;
  size_t stride = 0;
  size_t plane = 0;
};

// Returns the library that was compiled in, e.g. "libjpeg-turbo 2.1.5"; empty without one.
std::string jpeg_library();

inline bool looks_like_jpeg(std::span<const uint8_t> bytes) {
  return bytes.size() > 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

// Used by one thread at a time; it keeps its memory from image to image.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header of a JPEG, whose bytes must outlive decode(). Returns false if this decoder cannot make
  // RGB of it (CMYK, YCCK, 12 bits, damage ...).
  bool open(std::span<const uint8_t> bytes);
  int width() const;
  int height() const;

  // Whether the file is of the usual kind, YCbCr in 8 bits and Huffman-coded, with a sound header: GPUs
  // decode such files too. After open().
  bool is_usual() const;

  // Decodes a box of the image divided by `reduction` (1, 2, 4, 8); valid until the next call. Pixel (0, 0)
  // is the corner of the box. The pixels are those of a full decode. Returns none if the file is not sound.
  // Throws Error(decode) if it has too many scans.
  std::optional<Pixels> decode(const Box& box, int reduction);

  // Whether the image is stored as 4:2:0, one colour for 2 x 2 pixels. After open().
  bool has_planes() const;
  // Decodes the whole image before its colours are upsampled, to planes_bytes() of memory. Returns false if
  // the file is not sound. Throws Error(decode) if it has too many scans.
  bool decode_planes(uint8_t* memory);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foreload
