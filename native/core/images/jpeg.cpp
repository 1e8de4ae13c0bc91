#include "jpeg.hpp"

#include "entropy.hpp"
#include "error.hpp"
#include "libjpeg.hpp"
#include "planes.hpp"
#include "progressive.hpp"

#ifdef FORELOAD_HAVE_JPEG

#include <cstring>

namespace foreload {

namespace {

// What a picture far larger than the others took is not kept. Photographs of 40 megapixels stay below.
constexpr size_t kMostMemoryKept = size_t{256} << 20;

void count_scans(const jpeg_decompress_struct& info) {
  if (info.input_scan_number > kMaxScans) {
    info.err->msg_code = JERR_BAD_PROGRESSION;
    std::memset(info.err->msg_parm.i, 0, sizeof(info.err->msg_parm.i));
    info.err->error_exit(reinterpret_cast<j_common_ptr>(const_cast<jpeg_decompress_struct*>(&info)));
  }
}

}  // namespace

struct Target {
  uint8_t* planes[3];
  size_t widths[3], heights[3];
};

// What libjpeg calls before it reads the next part of a file of several scans.
struct Monitor {
  jpeg_progress_mgr base{};
  ProgressiveDecoder progressive;
  Region region;
  bool started = false, own_scans = false;

  static void watch(j_common_ptr common) {
    auto& info = *reinterpret_cast<j_decompress_ptr>(common);
    auto& self = *reinterpret_cast<Monitor*>(info.progress);
    count_scans(info);
    if (!self.started) self.own_scans = self.progressive.take_over(&info, self.region);
    self.started = true;
  }
};

struct JpegDecoder::State {
  jpeg_decompress_struct info{};
  JpegHandler handler;
  jpeg_source_mgr source{};
  Monitor monitor;
  std::span<const uint8_t> bytes;
  std::vector<uint8_t> pixels;
  EntropyDecoder entropy;
  bool own_entropy = false;

  State() {
    handler.install();
    monitor.base.progress_monitor = &Monitor::watch;
    info.err = &handler.base;
  }
  ~State() { jpeg_destroy_decompress(&info); }

  bool give_up() {
    const bool endless = info.input_scan_number > kMaxScans;
    jpeg_abort_decompress(&info);
    if (!endless) return false;
    throw Error(ErrorKind::decode, "the picture has more than " + std::to_string(kMaxScans) +
                                       " scans; if it is real, encode it again");
  }

  // The functions below return false after an error of libjpeg. They hold nothing that a longjmp would leave
  // behind.
  bool read_header() {
    if (setjmp(handler.escape) != 0) return give_up();
    // Created anew: libjpeg would use the tables of the last picture for one that lacks its own.
    jpeg_destroy_decompress(&info);
    jpeg_create_decompress(&info);
    info.src = &source;
    info.progress = &monitor.base;
    handler.exhausted = own_entropy = monitor.started = monitor.own_scans = false;
    set_source(source, bytes);
    jpeg_read_header(&info, TRUE);
    return true;
  }

  // A file of several scans is read here, as far as the region needs it.
  void start_reading(const Region& region) {
    monitor.region = region;
    jpeg_start_decompress(&info);
    if (monitor.own_scans) monitor.progressive.begin_output(&info);
  }

  bool start(const Box& box, int reduction, JDIMENSION* left) {
    if (setjmp(handler.escape) != 0) return give_up();
    info.out_color_space = JCS_RGB;
    info.scale_num = 1;
    info.scale_denom = static_cast<unsigned>(reduction);
    // Smooth chroma upsampling looks one column beyond the box on each side.
    constexpr int kMargin = 2;
    *left = static_cast<JDIMENSION>(box.x > kMargin ? box.x - kMargin : 0);
    start_reading({static_cast<int>(*left), box.y, box.x + box.width - 1 + kMargin, box.y + box.height - 1});
    const JDIMENSION right = static_cast<JDIMENSION>(box.x + box.width + kMargin);
    JDIMENSION width = (right < info.output_width ? right : info.output_width) - *left;
    // libjpeg-turbo loses its place if it both crops and reduces chroma of an eighth of the pixels.
    const bool croppable = reduction == 1 || info.max_h_samp_factor * info.max_v_samp_factor <= 4;
    if (!croppable) *left = 0;
    if (width < info.output_width && croppable) jpeg_crop_scanline(&info, left, &width);
    return true;
  }

  // After start(). Nothing of libjpeg runs here, so there is no longjmp out of it.
  void take_entropy(JDIMENSION left) {
#if JPEG_LIB_VERSION >= 70
    const int column = info.max_h_samp_factor * info.min_DCT_h_scaled_size;
#else
    const int column = info.max_h_samp_factor * info.min_DCT_scaled_size;
#endif
    const int right = static_cast<int>(left + info.output_width);
    const std::span<const uint8_t> data(source.next_input_byte, source.bytes_in_buffer);
    own_entropy = !monitor.own_scans &&
                  entropy.take_over(&info, data, static_cast<int>(left) / column, (right - 1) / column);
  }

  // To be called once the picture was read.
  bool is_sound() const {
    return handler.is_clean() && !(own_entropy && entropy.is_damaged()) &&
           !(monitor.own_scans && monitor.progressive.is_damaged());
  }

  // Whether the scans of a file that has several were sound, and gave everything; after start().
  bool is_complete() const { return has_all_bits(info) && (!monitor.own_scans || is_sound()); }

  bool start_planes() {
    if (setjmp(handler.escape) != 0) return give_up();
    info.raw_data_out = TRUE;
    start_reading({0, 0, static_cast<int>(info.image_width) - 1, static_cast<int>(info.image_height) - 1});
    return true;
  }

  // Rows come in bands of whole blocks, wider and higher than the picture.
  bool read_planes(const Target& target) {
    size_t strides[3], at = 0;
    JSAMPROW rows[3][2 * DCTSIZE];
    JSAMPARRAY planes[3] = {rows[0], rows[1], rows[2]};
    for (int c = 0; c < 3; ++c) strides[c] = size_t{info.comp_info[c].width_in_blocks} * DCTSIZE;
    const size_t size = 2 * DCTSIZE * (strides[0] + strides[1] + strides[2]);
    if (pixels.size() < size) pixels.resize(size);
    for (int c = 0; c < 3; ++c) {
      for (auto& row : rows[c]) {
        row = pixels.data() + at;
        at += strides[c];
      }
    }
    return read_bands(target, planes);
  }

  bool read_bands(const Target& target, JSAMPARRAY* planes) {
    if (setjmp(handler.escape) != 0) return give_up();
    while (info.output_scanline < info.output_height) {
      const size_t top = info.output_scanline;
      jpeg_read_raw_data(&info, planes, 2 * DCTSIZE);
      for (int c = 0; c < 3; ++c) {
        const size_t first = c == 0 ? top : top / 2;
        const size_t most = c == 0 ? 2 * DCTSIZE : DCTSIZE;
        for (size_t y = 0; y < most && first + y < target.heights[c]; ++y) {
          std::memcpy(target.planes[c] + (first + y) * target.widths[c], planes[c][y], target.widths[c]);
        }
      }
    }
    finish();
    return true;
  }

  bool read_rows(const Box& box, uint8_t* rows, size_t stride) {
    if (setjmp(handler.escape) != 0) return give_up();
    if (box.y > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(box.y));
    constexpr int kMaxRows = 16;
    JSAMPROW pointers[kMaxRows];
    for (int y = 0; y < box.height;) {
      const int wanted = box.height - y < kMaxRows ? box.height - y : kMaxRows;
      for (int i = 0; i < wanted; ++i) pointers[i] = rows + static_cast<size_t>(y + i) * stride;
      y += static_cast<int>(jpeg_read_scanlines(&info, pointers, static_cast<JDIMENSION>(wanted)));
    }
    // Whether the rest of the file is in order shows only behind the last row, which skipping would pass
    // over.
    const JDIMENSION below = info.output_height - info.output_scanline;
    if (!is_read_to_end() && below > 0) {
      if (below > 1) jpeg_skip_scanlines(&info, below - 1);
      pointers[0] = rows + static_cast<size_t>(box.height) * stride;
      jpeg_read_scanlines(&info, pointers, 1);
    }
    finish();
    return true;
  }

  // A file of several scans is read before its first row is given.
  bool is_read_to_end() { return own_entropy || jpeg_input_complete(&info); }

  void finish() {
    if (!is_read_to_end()) jpeg_finish_decompress(&info);
    jpeg_abort_decompress(&info);
  }
};

std::string jpeg_library() {
#ifdef LIBJPEG_TURBO_VERSION
#define FORELOAD_TEXT2(x) #x
#define FORELOAD_TEXT(x) FORELOAD_TEXT2(x)
  return "libjpeg-turbo " FORELOAD_TEXT(LIBJPEG_TURBO_VERSION);
#else
  return "libjpeg";
#endif
}

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() = default;

bool JpegDecoder::open(std::span<const uint8_t> bytes) {
  if (state_->pixels.capacity() + state_->monitor.progressive.memory() > kMostMemoryKept) {
    state_ = std::make_unique<State>();
  }
  state_->bytes = bytes;
  if (!state_->read_header()) return false;
  const J_COLOR_SPACE space = state_->info.jpeg_color_space;
  return space == JCS_YCbCr || space == JCS_GRAYSCALE || space == JCS_RGB;
}

int JpegDecoder::width() const {
  return static_cast<int>(state_->info.image_width);
}
int JpegDecoder::height() const {
  return static_cast<int>(state_->info.image_height);
}

bool JpegDecoder::is_usual() const {
  const jpeg_decompress_struct& info = state_->info;
  if (info.jpeg_color_space != JCS_YCbCr || info.num_components != 3) return false;
  // Without either marker libjpeg guesses the colours; of these numbers every decoder makes the same.
  const jpeg_component_info* const of = info.comp_info;
  const bool is_numbered = of[0].component_id == 1 && of[1].component_id == 2 && of[2].component_id == 3;
  return info.data_precision == 8 && !info.arith_code && state_->is_sound() &&
         (is_numbered || info.saw_JFIF_marker || info.saw_Adobe_marker);
}

std::optional<Pixels> JpegDecoder::decode(const Box& box, int reduction) {
  JDIMENSION left = 0;
  if (!state_->start(box, reduction, &left) || !state_->is_complete()) return std::nullopt;
  state_->take_entropy(left);
  const size_t stride = (size_t{state_->info.output_width} * 3 + 63) / 64 * 64;
  const size_t size = stride * (static_cast<size_t>(box.height) + 1);
  if (state_->pixels.size() < size) state_->pixels.resize(size);
  if (!state_->read_rows(box, state_->pixels.data(), stride) || !state_->is_sound()) return std::nullopt;
  return Pixels{state_->pixels.data() + (static_cast<size_t>(box.x) - left) * 3, stride};
}

bool JpegDecoder::has_planes() const {
  const jpeg_decompress_struct& info = state_->info;
  if (info.jpeg_color_space != JCS_YCbCr || info.num_components != 3) return false;
  const jpeg_component_info* const of = info.comp_info;
  return of[0].h_samp_factor == 2 && of[0].v_samp_factor == 2 && of[1].h_samp_factor == 1 &&
         of[1].v_samp_factor == 1 && of[2].h_samp_factor == 1 && of[2].v_samp_factor == 1;
}

bool JpegDecoder::decode_planes(uint8_t* memory) {
  const Planes planes = planes_in(memory, width(), height());
  Target target{{memory, const_cast<uint8_t*>(planes.cb), const_cast<uint8_t*>(planes.cr)}, {}, {}};
  for (int c = 0; c < 3; ++c) {
    target.widths[c] = static_cast<size_t>(c == 0 ? planes.width : planes.colour_width());
    target.heights[c] = static_cast<size_t>(c == 0 ? planes.height : planes.colour_height());
  }
  if (!state_->start_planes() || !state_->is_complete()) return false;
  state_->take_entropy(0);
  return state_->read_planes(target) && state_->is_sound();
}

}  // namespace foreload

#else

namespace foreload {

struct JpegDecoder::State {};
std::string jpeg_library() {
  return "";
}
JpegDecoder::JpegDecoder() = default;
JpegDecoder::~JpegDecoder() = default;
bool JpegDecoder::open(std::span<const uint8_t>) {
  return false;
}
int JpegDecoder::width() const {
  return 0;
}
int JpegDecoder::height() const {
  return 0;
}
bool JpegDecoder::is_usual() const {
  return false;
}
std::optional<Pixels> JpegDecoder::decode(const Box&, int) {
  throw Error(ErrorKind::decode, "built without libjpeg-turbo");
}
bool JpegDecoder::has_planes() const {
  return false;
}
bool JpegDecoder::decode_planes(uint8_t*) {
  throw Error(ErrorKind::decode, "built without libjpeg-turbo");
}

}  // namespace foreload

#endif
