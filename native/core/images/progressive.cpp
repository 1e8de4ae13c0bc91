#include "progressive.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <span>

#if defined(FORELOAD_HAVE_JPEG) && __has_include(<jpegint.h>)

// libjpeg's own headers for programs that replace a part of it.
#define JPEG_INTERNALS
#include <jpeglib.h>

namespace foreload {

namespace {

// A coefficient of 10 bits, shifted by more, may not fit into the 16 bits that libjpeg cuts it to.
constexpr int kMaxShift = 5;

#if JPEG_LIB_VERSION >= 70
int width_of(const jpeg_component_info& component) {
  return component.DCT_h_scaled_size;
}
int height_of(const jpeg_component_info& component) {
  return component.DCT_v_scaled_size;
}
int smallest_width(const jpeg_decompress_struct& info) {
  return info.min_DCT_h_scaled_size;
}
int smallest_height(const jpeg_decompress_struct& info) {
  return info.min_DCT_v_scaled_size;
}
#else
int width_of(const jpeg_component_info& component) {
  return component.DCT_scaled_size;
}
int height_of(const jpeg_component_info& component) {
  return component.DCT_scaled_size;
}
int smallest_width(const jpeg_decompress_struct& info) {
  return info.min_DCT_scaled_size;
}
int smallest_height(const jpeg_decompress_struct& info) {
  return info.min_DCT_scaled_size;
}
#endif

size_t round_up(size_t count, int multiple) {
  const auto step = static_cast<size_t>(multiple);
  return (count + step - 1) / step * step;
}

}  // namespace

bool ProgressiveDecoder::take_over(jpeg_decompress_struct* info, const Region& region) {
  if (!info->progressive_mode || info->arith_code || info->data_precision != 8 ||
      info->num_components > static_cast<int>(planes_.size())) {
    return false;
  }
  const int width = info->max_h_samp_factor * smallest_width(*info);
  const int height = info->max_v_samp_factor * smallest_height(*info);
  // Smooth upsampling looks at the rows beside, and libjpeg gets to the first one by those of the iMCU
  // before.
  const auto left = static_cast<size_t>(region.left / width);
  const auto right = static_cast<size_t>(region.right / width) + 1;
  const auto top = static_cast<size_t>(std::max(0, region.top / height - 1));
  end_row_ = std::min<size_t>(info->total_iMCU_rows, static_cast<size_t>(region.bottom / height) + 2);
  for (int c = 0; c < info->num_components; ++c) {
    const jpeg_component_info& about = info->comp_info[c];
    const auto h = static_cast<size_t>(about.h_samp_factor), v = static_cast<size_t>(about.v_samp_factor);
    Plane& plane = planes_[static_cast<size_t>(c)];
    plane.columns = round_up(about.width_in_blocks, about.h_samp_factor);
    plane.left = left * h;
    plane.wanted_columns = std::min(plane.columns, right * h) - plane.left;
    plane.top = top * v;
    plane.bottom = end_row_ * v;
    plane.given = 0;
    plane.nonzero.assign(plane.columns * plane.bottom, 0);
    plane.coefficients.assign(plane.wanted_columns * (plane.bottom - plane.top) * 64, 0);
  }
  damaged_ = false;
  info->client_data = this;
  // The first scan is begun already, the others begin with the second of these.
  info->inputctl->consume_input = info->coef->consume_data = &ProgressiveDecoder::consume;
  return true;
}

int ProgressiveDecoder::consume(jpeg_decompress_struct* info) {
  auto& self = *static_cast<ProgressiveDecoder*>(info->client_data);
  const std::span<const uint8_t> data(info->src->next_input_byte, info->src->bytes_in_buffer);
  self.intervals_.find(data);
  // To the marker behind the scan, or to the end of the file.
  info->src->next_input_byte += self.intervals_.end();
  info->src->bytes_in_buffer -= self.intervals_.end();
  if (!self.damaged_) self.damaged_ = !self.read_scan(info);
  info->input_iMCU_row = info->total_iMCU_rows;
  info->inputctl->finish_input_pass(info);
  return JPEG_SCAN_COMPLETED;
}

// Whether the scan is one that is read here. libjpeg has checked, or warned of, everything else.
bool ProgressiveDecoder::check_scan(const jpeg_decompress_struct& info) {
  if (info.Ss > 0 && info.Al > kMaxShift) return false;
  const uint64_t band = ~uint64_t{0} >> info.Ss & ~uint64_t{0} << (63 - info.Se);
  for (int i = 0; i < info.comps_in_scan; ++i) {
    Plane& plane = planes_[static_cast<size_t>(info.cur_comp_info[i]->component_index)];
    // What is given a second time goes over what was there.
    if (info.Ah == 0 && (plane.given & band) != 0) return false;
    plane.given |= band;
  }
  return true;
}

bool ProgressiveDecoder::load_table(const jpeg_decompress_struct& info, size_t number, Codes codes) {
  JHUFF_TBL* const* const tables = codes == Codes::dc ? info.dc_huff_tbl_ptrs : info.ac_huff_tbl_ptrs;
  if (number >= tables_.size() || tables[number] == nullptr) return false;
  return tables_[number].load(tables[number]->bits, tables[number]->huffval, codes);
}

bool ProgressiveDecoder::read_scan(jpeg_decompress_struct* info) {
  if (!check_scan(*info)) return false;
  for (int i = 0; i < info->comps_in_scan; ++i) {
    const jpeg_component_info& about = *info->cur_comp_info[i];
    const bool dc = info->Ss == 0;
    if (dc && info->Ah != 0) break;
    const int number = dc ? about.dc_tbl_no : about.ac_tbl_no;
    const Codes codes = dc ? Codes::dc : info->Ah == 0 ? Codes::ac_first : Codes::ac_refine;
    if (!load_table(*info, static_cast<size_t>(number), codes)) return false;
  }
  const size_t mcus = size_t{info->MCUs_per_row} * info->MCU_rows_in_scan;
  const size_t interval = info->restart_interval > 0 ? info->restart_interval : mcus;
  // libjpeg reads fill bytes as data or as a marker, by how many bytes it has been given at a time.
  const size_t count = (mcus + interval - 1) / interval;
  if (!intervals_.are(count) || intervals_.is_filled()) return false;
  // In a scan of one component an MCU is a block, whatever its sampling.
  const size_t height =
      info->comps_in_scan == 1 ? static_cast<size_t>(info->cur_comp_info[0]->v_samp_factor) : 1;
  const size_t end = std::min(mcus, end_row_ * height * info->MCUs_per_row);
  for (size_t number = 0; number * interval < end; ++number) {
    const size_t from = number * interval, to = std::min(from + interval, end);
    const bool read = info->Ss == 0 ? read_first_coefficients(*info, number, from, to)
                                    : read_others(*info, number, from, to);
    if (!read) return false;
  }
  return true;
}

// MCUs [from, to), in an interval that begins there.
bool ProgressiveDecoder::read_first_coefficients(const jpeg_decompress_struct& info, size_t number,
                                                 size_t from, size_t to) {
  const std::span<const uint8_t> bytes = intervals_.unstuffed(number);
  BitReader reader{0, 0, bytes.data()};
  std::array<int32_t, 4> last{};
  uint32_t seen = 0;
  const auto read_block = [&](const jpeg_component_info& about, size_t row, size_t column, int32_t& dc) {
    int16_t* const out = planes_[static_cast<size_t>(about.component_index)].block(row, column);
    reader.refill();
    if (info.Ah != 0) {
      if (out != nullptr && reader.bits >> 63 != 0) {
        out[0] = static_cast<int16_t>(out[0] | 1 << info.Al);
      }
      reader.drop(1);
      return true;
    }
    const uint32_t entry = tables_[static_cast<size_t>(about.dc_tbl_no)].entry(reader);
    seen |= entry >> 8;
    dc += read_value(entry, reader);
    if (out != nullptr) out[0] = static_cast<int16_t>(static_cast<uint32_t>(dc) << info.Al);
    // No sound file gets there; libjpeg goes on, up to a point.
    constexpr int32_t kMost = std::numeric_limits<int16_t>::max();
    return dc <= kMost && dc >= -kMost;
  };
  for (size_t mcu = from; mcu < to; ++mcu) {
    const size_t row = mcu / info.MCUs_per_row, column = mcu % info.MCUs_per_row;
    for (int i = 0; i < info.comps_in_scan; ++i) {
      const jpeg_component_info& about = *info.cur_comp_info[i];
      const auto width = static_cast<size_t>(about.MCU_width), height = static_cast<size_t>(about.MCU_height);
      for (size_t block = 0; block < width * height; ++block) {
        if (!read_block(about, row * height + block / width, column * width + block % width,
                        last[static_cast<size_t>(i)])) {
          return false;
        }
      }
    }
    if (reader.is_past(bytes.data() + bytes.size())) return false;
  }
  return !HuffmanTable::is_astray(seen);
}

// Blocks [from, to) of one component, in an interval that begins there.
bool ProgressiveDecoder::read_others(const jpeg_decompress_struct& info, size_t number, size_t from,
                                     size_t to) {
  const jpeg_component_info& about = *info.cur_comp_info[0];
  Plane& plane = planes_[static_cast<size_t>(about.component_index)];
  const std::span<const uint8_t> bytes = intervals_.unstuffed(number);
  Scan scan{&tables_[static_cast<size_t>(about.ac_tbl_no)],
            static_cast<unsigned>(info.Ss),
            static_cast<unsigned>(info.Se),
            info.Al,
            {0, 0, bytes.data()},
            bytes.data() + bytes.size()};
  const ScanKernels& kernels = scan_kernels();
  const auto read = info.Ah == 0 ? kernels.first : kernels.refine;
  const size_t right = plane.left + plane.wanted_columns;
  while (from < to) {
    const size_t row = from / info.MCUs_per_row, column = from % info.MCUs_per_row;
    // As far as all of them are in the region, or none.
    size_t end = info.MCUs_per_row;
    int16_t* const out = plane.block(row, column);
    if (out != nullptr) end = std::min(end, right);
    if (out == nullptr && column < plane.left) end = std::min(end, plane.left);
    const size_t count = std::min(end - column, to - from);
    if (!read(scan, count, plane.nonzero.data() + row * plane.columns + column, out)) return false;
    from += count;
  }
  return true;
}

void ProgressiveDecoder::begin_output(jpeg_decompress_struct* info) {
  info->coef->decompress_data = &ProgressiveDecoder::give_row;
}

int ProgressiveDecoder::give_row(jpeg_decompress_struct* info, uint8_t*** out) {
  auto& self = *static_cast<ProgressiveDecoder*>(info->client_data);
  for (int c = 0; c < info->num_components; ++c) {
    jpeg_component_info& about = info->comp_info[c];
    if (!about.component_needed) continue;
    Plane& plane = self.planes_[static_cast<size_t>(c)];
    const auto rows = static_cast<size_t>(about.v_samp_factor);
    for (size_t y = 0; y < rows; ++y) {
      const size_t row = info->output_iMCU_row * rows + y;
      if (row >= about.height_in_blocks) break;
      const JSAMPARRAY target = out[c] + y * static_cast<size_t>(height_of(about));
      JDIMENSION at = 0;
      for (JDIMENSION column = info->master->first_MCU_col[c]; column <= info->master->last_MCU_col[c];
           ++column, at += static_cast<JDIMENSION>(width_of(about))) {
        // What is not in the region is not looked at.
        int16_t* const block = plane.block(row, column);
        if (block != nullptr) info->idct->inverse_DCT[c](info, &about, block, target, at);
      }
    }
  }
  return ++info->output_iMCU_row < info->total_iMCU_rows ? JPEG_ROW_COMPLETED : JPEG_SCAN_COMPLETED;
}

size_t ProgressiveDecoder::memory() const {
  size_t total = 0;
  for (const Plane& plane : planes_) {
    total += plane.nonzero.capacity() * sizeof(uint64_t) + plane.coefficients.capacity() * sizeof(int16_t);
  }
  return total;
}

}  // namespace foreload

#else

namespace foreload {

bool ProgressiveDecoder::take_over(jpeg_decompress_struct*, const Region&) {
  return false;
}
void ProgressiveDecoder::begin_output(jpeg_decompress_struct*) {}
size_t ProgressiveDecoder::memory() const {
  return 0;
}

}  // namespace foreload

#endif
