#include "libjpeg.hpp"

#ifdef FORELOAD_HAVE_JPEG

#include <cstring>

namespace foreload {

namespace {

// libjpeg's own table of messages cannot be linked into a shared object from every static build. These two
// entries name the library, and are private to it.
#define JVERSION ""
#define JCOPYRIGHT_SHORT ""
const char* const kMessages[] = {
#define JMESSAGE(code, text) text,
#include <jerror.h>
};

[[noreturn]] void escape(j_common_ptr info) {
  auto* handler = reinterpret_cast<JpegHandler*>(info->err);
  const int code = info->err->msg_code;
  const bool known = code > 0 && code < JMSG_LASTMSGCODE;
  // The message decides whether the arguments are an int array or a string; the formats are libjpeg's.
  const char* format = known ? kMessages[code] : "unknown libjpeg error";
  const int* i = info->err->msg_parm.i;
  if (std::strstr(format, "%s") != nullptr) {
    std::snprintf(handler->message, sizeof(handler->message), format, info->err->msg_parm.s);
  } else {
    std::snprintf(handler->message, sizeof(handler->message), format, i[0], i[1], i[2], i[3], i[4], i[5],
                  i[6], i[7]);
  }
  std::longjmp(handler->escape, 1);
}

void note_warning(j_common_ptr info, int level) {
  // Pillow refuses a header with this marker, which libjpeg passes over.
  constexpr int kTem = 0x01;
  const bool is_tem = info->err->msg_code == JTRC_PARMLESS_MARKER && info->err->msg_parm.i[0] == kTem;
  if (level < 0 || is_tem) ++info->err->num_warnings;
}

void ignore(j_common_ptr) {}
void ignore_message(j_common_ptr, char* buffer) {
  buffer[0] = 0;
}
void reset_errors(j_common_ptr info) {
  info->err->num_warnings = 0;
  info->err->msg_code = 0;
}

void start_source(j_decompress_ptr) {}
void end_source(j_decompress_ptr) {}
boolean refill(j_decompress_ptr info) {
  static const JOCTET kEnd[2] = {0xFF, JPEG_EOI};
  reinterpret_cast<JpegHandler*>(info->err)->exhausted = true;
  info->src->next_input_byte = kEnd;
  info->src->bytes_in_buffer = 2;
  return TRUE;
}
void skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  const size_t step = static_cast<size_t>(count);
  if (step > info->src->bytes_in_buffer) {
    refill(info);
  } else {
    info->src->next_input_byte += step;
    info->src->bytes_in_buffer -= step;
  }
}

}  // namespace

void JpegHandler::install() {
  base.error_exit = foreload::escape;
  base.emit_message = note_warning;
  base.output_message = ignore;
  base.format_message = ignore_message;
  base.reset_error_mgr = reset_errors;
}

void set_source(jpeg_source_mgr& source, std::span<const uint8_t> bytes) {
  source.init_source = start_source;
  source.fill_input_buffer = refill;
  source.skip_input_data = skip;
  source.resync_to_restart = jpeg_resync_to_restart;
  source.term_source = end_source;
  source.next_input_byte = bytes.data();
  source.bytes_in_buffer = bytes.size();
}

bool has_all_bits(const jpeg_decompress_struct& info) {
  if (!info.progressive_mode || info.coef_bits == nullptr) return true;
  for (int c = 0; c < info.num_components; ++c) {
    for (int k = 0; k < DCTSIZE2; ++k) {
      if (info.coef_bits[c][k] != 0) return false;
    }
  }
  return true;
}

}  // namespace foreload

#endif
