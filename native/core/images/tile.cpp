#include "tile.hpp"

#include <cstdlib>
#include <cstring>

#include "error.hpp"
#include "image.hpp"
#include "libjpeg.hpp"

#ifdef FORELOAD_HAVE_JPEG

namespace foreload {

namespace {

// Short intervals skip more, but each takes a marker, and begins without a neighbour to predict from.
constexpr int kMin = 3, kMax = 6, kUsual = 4;

// If the interval divides the row, no interval reaches into the next one.
unsigned interval_for(int columns) {
  for (int interval = kMin; interval <= kMax; ++interval) {
    if (columns % interval == 0) return static_cast<unsigned>(interval);
  }
  return kUsual;
}

class Transcoder {
 public:
  Transcoder() {
    handler_.install();
    from_.err = &handler_.base;
    to_.err = &handler_.base;
    progress_.progress_monitor = &count_scans;
  }
  ~Transcoder() {
    if (is_writing_) end_writing();
    jpeg_destroy_compress(&to_);
    jpeg_destroy_decompress(&from_);
    std::free(memory_);
  }
  Transcoder(const Transcoder&) = delete;
  Transcoder& operator=(const Transcoder&) = delete;

  std::vector<uint8_t> transcode(std::span<const uint8_t> bytes, int interval) {
    if (!run(bytes, interval)) {
      if (handler_.message[0] == 0 || is_read_ || is_unusual()) return {};
      throw Error(ErrorKind::decode, std::string("damaged JPEG: ") + handler_.message);
    }
    return {memory_, memory_ + size_};
  }

 private:
  bool run(std::span<const uint8_t> bytes, int interval) {
    if (setjmp(handler_.escape) != 0) return false;
    jpeg_create_decompress(&from_);
    jpeg_create_compress(&to_);
    set_source(source_, bytes);
    from_.src = &source_;
    from_.progress = &progress_;
    jpeg_save_markers(&from_, JPEG_COM, 0xFFFF);
    for (int marker = 0; marker < 16; ++marker) jpeg_save_markers(&from_, JPEG_APP0 + marker, 0xFFFF);
    jpeg_read_header(&from_, TRUE);
    if (from_.data_precision != 8) return false;
    // All of its coefficients would be in memory, and decoders refuse it.
    if (int64_t{from_.image_width} * from_.image_height > kMaxPixels) return false;
    jvirt_barray_ptr* const coefficients = jpeg_read_coefficients(&from_);
    if (handler_.exhausted) {
      std::strcpy(handler_.message, "the file ends before its picture does");
      return false;
    }
    // Decoders make of damage, and of a picture that lacks bits, what they could not make of these
    // coefficients.
    if (!handler_.is_clean() || !has_all_bits(from_) || !are_encodable(coefficients)) return false;
    is_read_ = true;
    jpeg_copy_critical_parameters(&from_, &to_);
    jpeg_mem_dest(&to_, &memory_, &size_);
    is_writing_ = true;
    to_.optimize_coding = FALSE;
    to_.arith_code = FALSE;
    to_.restart_interval = interval > 0 ? static_cast<unsigned>(interval) : interval_for(columns());
    jpeg_write_coefficients(&to_, coefficients);
    copy_markers();
    jpeg_finish_compress(&to_);
    is_writing_ = false;
    jpeg_finish_decompress(&from_);
    return true;
  }

  // Leaves a file as it is that decoders refuse for its scans, rather than read them all.
  static void count_scans(j_common_ptr common) {
    const auto& info = *reinterpret_cast<j_decompress_ptr>(common);
    if (info.input_scan_number > kMaxScans) {
      std::longjmp(reinterpret_cast<JpegHandler*>(info.err)->escape, 1);
    }
  }

  // After an error, `memory_` is a buffer that libjpeg has freed for a larger one: this tells the present
  // one.
  void end_writing() { to_.dest->term_destination(&to_); }

  // Whether the standard tables have a code for each coefficient, and for each step from one DC to another:
  // in damaged files they need not, which libjpeg's encoder does not notice.
  bool are_encodable(jvirt_barray_ptr* coefficients) {
    constexpr int kLargestAc = 1023, kSmallestDc = -1024, kLargestDc = 1023;
    for (int c = 0; c < from_.num_components; ++c) {
      const jpeg_component_info& of = from_.comp_info[c];
      for (JDIMENSION y = 0; y < of.height_in_blocks; ++y) {
        const JBLOCKROW row = *from_.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&from_),
                                                             coefficients[c], y, 1, FALSE);
        for (JDIMENSION x = 0; x < of.width_in_blocks; ++x) {
          if (row[x][0] < kSmallestDc || row[x][0] > kLargestDc) return false;
          for (int k = 1; k < DCTSIZE2; ++k) {
            if (row[x][k] < -kLargestAc || row[x][k] > kLargestAc) return false;
          }
        }
      }
    }
    return true;
  }

  // Whether the file is legal, but libjpeg cannot read it, or write it with restart markers.
  bool is_unusual() const {
    const int code = handler_.base.msg_code;
    return code == JERR_BAD_PRECISION || code == JERR_SOF_UNSUPPORTED || code == JERR_ARITH_NOTIMPL ||
           code == JERR_BAD_MCU_SIZE;
  }

  int columns() const {
    const int pixels = from_.num_components == 1 ? DCTSIZE : from_.max_h_samp_factor * DCTSIZE;
    return (static_cast<int>(from_.image_width) + pixels - 1) / pixels;
  }

  void copy_markers() {
    for (jpeg_saved_marker_ptr marker = from_.marker_list; marker != nullptr; marker = marker->next) {
      const auto is = [&](int code, const char* name) {
        const size_t length = std::strlen(name);
        return marker->marker == code && marker->data_length >= length &&
               std::memcmp(marker->data, name, length) == 0;
      };
      // libjpeg writes these by itself.
      if (to_.write_JFIF_header && is(JPEG_APP0, "JFIF")) continue;
      if (to_.write_Adobe_marker && is(JPEG_APP0 + 14, "Adobe")) continue;
      jpeg_write_marker(&to_, marker->marker, marker->data, marker->data_length);
    }
  }

  jpeg_decompress_struct from_{};
  jpeg_compress_struct to_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  JpegHandler handler_;
  unsigned char* memory_ = nullptr;
  unsigned long size_ = 0;
  bool is_read_ = false, is_writing_ = false;
};

}  // namespace

std::vector<uint8_t> tile_jpeg(std::span<const uint8_t> bytes, int interval) {
  return Transcoder().transcode(bytes, interval);
}

}  // namespace foreload

#else

namespace foreload {

std::vector<uint8_t> tile_jpeg(std::span<const uint8_t>, int) {
  return {};
}

}  // namespace foreload

#endif
