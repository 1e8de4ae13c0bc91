// Measures the most that the cores can do with libjpeg-turbo: crop decode and resize of files that are in
// memory.
//   limit DIR THREADS
// prints a line of JSON: images per second of that; and, with one thread, milliseconds per image of
// libjpeg-turbo's crop decode alone, and of foreload's whole path to uint8 and to float32, for the same
// boxes, in turns.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

// jpeglib.h needs stdio.h before it.
#include <jpeglib.h>

#include "image.hpp"

using namespace foreload;

namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Decodes as libjpeg's documentation says, with a margin for smooth upsampling; all memory is reused.
class PlainDecoder {
 public:
  PlainDecoder() {
    info_.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&info_);
  }
  ~PlainDecoder() { jpeg_destroy_decompress(&info_); }

  // Decodes the box that `transform` shows of image `index`.
  Pixels decode(std::span<const uint8_t> bytes, const Transform& transform, size_t index, View& view) {
    jpeg_mem_src(&info_, bytes.data(), bytes.size());
    jpeg_read_header(&info_, TRUE);
    Random random({1, 0}, index);
    view = choose_view(transform, static_cast<int>(info_.image_width), static_cast<int>(info_.image_height),
                       random);
    info_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info_);
    JDIMENSION left = static_cast<JDIMENSION>(std::max(0, view.box.x - 2));
    JDIMENSION width =
        std::min(info_.output_width, static_cast<JDIMENSION>(view.box.x + view.box.width + 2)) - left;
    if (width < info_.output_width) jpeg_crop_scanline(&info_, &left, &width);
    if (view.box.y > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(view.box.y));
    const size_t stride = size_t{info_.output_width} * 3;
    rows_.resize(std::max(rows_.size(), stride * static_cast<size_t>(view.box.height)));
    for (int y = 0; y < view.box.height;) {
      JSAMPROW rows[16];
      const int wanted = std::min(16, view.box.height - y);
      for (int i = 0; i < wanted; ++i) rows[i] = rows_.data() + static_cast<size_t>(y + i) * stride;
      y += static_cast<int>(jpeg_read_scanlines(&info_, rows, static_cast<JDIMENSION>(wanted)));
    }
    jpeg_abort_decompress(&info_);
    return {rows_.data() + (static_cast<size_t>(view.box.x) - left) * 3, stride};
  }

 private:
  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  std::vector<uint8_t> rows_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: limit DIR THREADS\n");
    return 2;
  }
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(arguments[1])) {
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  Files files(paths, paths.size());
  std::vector<uint8_t> unused;
  for (size_t i = 0; i < paths.size(); ++i) files.bytes(i, unused);

  Transform transform;
  transform.crop = Crop::random;
  transform.flip = 0.5;
  const size_t sample = 3 * 224 * 224;

  std::vector<uint8_t> batch(64 * sample);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    PlainDecoder decoder;
    Resizer resizer;
    Filter vertical, horizontal;
    std::vector<uint8_t> buffer;
    for (size_t i; (i = next.fetch_add(1)) < paths.size();) {
      View view;
      const Pixels pixels = decoder.decode(files.bytes(i, buffer), transform, i, view);
      vertical.plan(view.box.height, 224, 0, 224, false);
      horizontal.plan(view.box.width, 224, 0, 224, view.mirrored);
      resizer.resize(pixels.pixels, pixels.stride, 0, vertical, horizontal, {},
                     batch.data() + i % 64 * sample);
    }
  };
  double best = 0;
  for (int round = 0; round < 2; ++round) {
    next = 0;
    const auto started = Clock::now();
    std::vector<std::thread> threads;
    for (int i = 0; i < std::atoi(arguments[2]); ++i) threads.emplace_back(work);
    for (auto& thread : threads) thread.join();
    best = static_cast<double>(paths.size()) / since(started);
  }

  PlainDecoder decoder;
  ImageLoader loader;
  std::vector<uint8_t> buffer;
  std::vector<float> out(sample);
  double decode = 0, bytes = 0, floats = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    View view;
    auto started = Clock::now();
    decoder.decode(files.bytes(i, buffer), transform, i, view);
    decode += since(started);
    transform.output.normalise = false;
    started = Clock::now();
    loader.load(files, i, transform, {1, 0}, nullptr, out.data());
    bytes += since(started);
    transform.output.normalise = true;
    started = Clock::now();
    loader.load(files, i, transform, {1, 0}, nullptr, out.data());
    floats += since(started);
  }
  const double ms = 1e3 / static_cast<double>(paths.size());
  std::printf(
      "{\"images_per_s\": %.1f, \"crop_decode_ms\": %.4f, \"uint8_ms\": %.4f, \"float32_ms\": %.4f}\n", best,
      decode * ms, bytes * ms, floats * ms);
}
