// JPEGs made in the test, of every kind that matters, and libjpeg's own word on what is in them.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

// jpeglib.h needs stdio.h before it.
#include <jpeglib.h>

namespace jpegs {

using Bytes = std::vector<uint8_t>;

struct Kind {
  int horizontal = 2, vertical = 2;  // chroma subsampling
  bool progressive = false, grey = false, cmyk = false;
  int restart = 0;  // MCUs between restart markers
  int orientation = 0;
  int quality = 90;
  bool optimise = false;  // Huffman tables of its own
  bool noise = false;     // nothing but noise, whose codes are long
  bool separate = false;  // a scan for each component
  unsigned script = 0;    // names one of all legal ways to divide a progressive file into scans
};

// The scans of any legal progressive file: bands of coefficients, the bits below one for each, given later
// one by one, perhaps in other bands.
inline std::vector<jpeg_scan_info> any_script(int channels, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  std::vector<jpeg_scan_info> scans;
  const auto add_first = [&](int high, int low) {
    if (below(2)) {
      scans.push_back({channels, {0, 1, 2, 3}, 0, 0, high, low});
    } else {
      for (int c = 0; c < channels; ++c) scans.push_back({1, {c}, 0, 0, high, low});
    }
  };
  const auto add_bands = [&](int c, int high, int low) {
    for (int from = 1; from < 64;) {
      const int to = below(3) == 0 ? 63 : from + below(64 - from);
      scans.push_back({1, {c}, from, to, high, low});
      from = to + 1;
    }
  };
  int low = below(4);
  add_first(0, low);
  for (int c = 0; c < channels; ++c) {
    int bit = below(4);
    add_bands(c, 0, bit);
    for (; bit > 0; --bit) {
      add_bands(c, bit, bit - 1);
      if (low > 0 && below(2)) {
        add_first(low, low - 1);
        --low;
      }
    }
  }
  for (; low > 0; --low) add_first(low, low - 1);
  return scans;
}

// Smooth colours with some noise, as a photograph has.
inline Bytes pixels(int width, int height, int channels, unsigned seed) {
  std::mt19937 random(seed);
  Bytes out(static_cast<size_t>(width) * static_cast<size_t>(height) * static_cast<size_t>(channels));
  size_t at = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const unsigned wave = static_cast<unsigned>((x * (c + 2) + y * (5 - c)) / 2 % 256);
        out[at++] = static_cast<uint8_t>((wave < 128 ? 2 * wave : 510 - 2 * wave) * 3 / 4 + random() % 64);
      }
    }
  }
  return out;
}

inline Bytes encode(int width, int height, const Kind& kind, unsigned seed = 1) {
  const int channels = kind.grey ? 1 : kind.cmyk ? 4 : 3;
  Bytes source = pixels(width, height, channels, seed);
  std::mt19937 random(seed);
  if (kind.noise) {
    for (auto& value : source) value = random() % 2 ? 255 : static_cast<uint8_t>(random());
  }
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = channels;
  info.in_color_space = kind.grey ? JCS_GRAYSCALE : kind.cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, kind.quality, TRUE);
  if (channels == 3) {
    info.comp_info[0].h_samp_factor = kind.horizontal;
    info.comp_info[0].v_samp_factor = kind.vertical;
  }
  info.optimize_coding = kind.optimise ? TRUE : FALSE;
  if (kind.progressive) jpeg_simple_progression(&info);
  const jpeg_scan_info scans[] = {
      {1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}, {1, {3}, 0, 63, 0, 0}};
  if (kind.separate) {
    info.scan_info = scans;
    info.num_scans = channels;
  }
  const std::vector<jpeg_scan_info> script = any_script(channels, kind.script);
  if (kind.progressive && kind.script > 0) {
    info.scan_info = script.data();
    info.num_scans = static_cast<int>(script.size());
  }
  info.restart_interval = static_cast<unsigned>(kind.restart);
  jpeg_start_compress(&info, TRUE);
  if (kind.orientation > 0) {
    const uint8_t exif[] = {'E', 'x',  'i',  'f', 0,
                            0,   'I',  'I',  42,  0,
                            8,   0,    0,    0,   1,
                            0,   0x12, 0x01, 3,   0,
                            1,   0,    0,    0,   static_cast<uint8_t>(kind.orientation),
                            0,   0,    0,    0,   0,
                            0,   0};
    jpeg_write_marker(&info, JPEG_APP0 + 1, exif, sizeof(exif));
  }
  for (int y = 0; y < height; ++y) {
    auto* row = const_cast<uint8_t*>(source.data()) +
                static_cast<size_t>(y) * static_cast<size_t>(width) * static_cast<size_t>(channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  Bytes out(memory, memory + size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return out;
}

// A plain full decode, by libjpeg alone: RGB rows without gaps, 1 / reduction of the size.
inline Bytes decode(const Bytes& jpeg, int reduction = 1) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, jpeg.data(), static_cast<unsigned long>(jpeg.size()));
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  info.scale_denom = static_cast<unsigned>(reduction);
  jpeg_start_decompress(&info);
  const size_t stride = size_t{info.output_width} * 3;
  Bytes out(stride * info.output_height);
  while (info.output_scanline < info.output_height) {
    uint8_t* row = out.data() + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return out;
}

struct Picture {
  int width = 0, height = 0;
  Bytes rgb;  // rows without gaps
};

// Runs libjpeg on bytes of any sort, as Pillow does: warnings do not count, but bytes that are wanted behind
// the last one are an error, and the end marker is wanted.
class Reader {
 public:
  // The whole picture at 1 / reduction of its size; none after an error, or if it cannot become RGB.
  static std::optional<Picture> read(const uint8_t* bytes, size_t size, int reduction = 1) {
    Reader reader;
    Picture picture;
    const bool done = reader.run(bytes, size, reduction, picture);
    jpeg_destroy_decompress(&reader.info_);
    return done ? std::optional(std::move(picture)) : std::nullopt;
  }
  static std::optional<Picture> read(const Bytes& jpeg, int reduction = 1) {
    return read(jpeg.data(), jpeg.size(), reduction);
  }

 private:
  bool run(const uint8_t* bytes, size_t size, int reduction, Picture& picture) {
    info_.err = jpeg_std_error(&errors_);
    errors_.error_exit = &Reader::fail;
    errors_.emit_message = [](j_common_ptr, int) {};
    info_.client_data = this;
    if (setjmp(escape_) != 0) return false;
    jpeg_create_decompress(&info_);
    jpeg_mem_src(&info_, bytes, static_cast<unsigned long>(size));
    info_.src->fill_input_buffer = [](j_decompress_ptr info) -> boolean {
      fail(reinterpret_cast<j_common_ptr>(info));
      return FALSE;
    };
    info_.src->skip_input_data = [](j_decompress_ptr info, long count) {
      if (count <= 0) return;
      if (static_cast<size_t>(count) > info->src->bytes_in_buffer) fail(reinterpret_cast<j_common_ptr>(info));
      info->src->next_input_byte += count;
      info->src->bytes_in_buffer -= static_cast<size_t>(count);
    };
    jpeg_read_header(&info_, TRUE);
    const J_COLOR_SPACE space = info_.jpeg_color_space;
    if (space != JCS_YCbCr && space != JCS_GRAYSCALE && space != JCS_RGB) return false;
    info_.out_color_space = JCS_RGB;
    info_.scale_denom = static_cast<unsigned>(reduction);
    jpeg_start_decompress(&info_);
    picture.width = static_cast<int>(info_.output_width);
    picture.height = static_cast<int>(info_.output_height);
    const size_t stride = size_t{info_.output_width} * 3;
    picture.rgb.resize(stride * info_.output_height);
    while (info_.output_scanline < info_.output_height) {
      uint8_t* row = picture.rgb.data() + info_.output_scanline * stride;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  [[noreturn]] static void fail(j_common_ptr info) {
    std::longjmp(static_cast<Reader*>(info->client_data)->escape_, 1);
  }

  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  std::jmp_buf escape_{};
};

inline std::vector<Kind> kinds() {
  return {{},
          {.horizontal = 2, .vertical = 1},
          {.horizontal = 1, .vertical = 1},
          {.horizontal = 1, .vertical = 2},
          {.progressive = true},
          {.horizontal = 1, .vertical = 1, .progressive = true},
          {.grey = true},
          {.restart = 5},
          {.horizontal = 4, .vertical = 1},
          {.separate = true},
          {.progressive = true, .restart = 3},
          {.horizontal = 2, .vertical = 1, .progressive = true, .optimise = true, .noise = true, .script = 1},
          {.progressive = true, .grey = true, .script = 2},
          {.progressive = true, .restart = 40, .script = 3},
          {.restart = 40}};
}

}  // namespace jpegs
