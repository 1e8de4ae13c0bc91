// Loads mutated JPEGs through the whole image path: whatever the bytes are, it gives the pixels that libjpeg
// gives for the whole file, or an error if libjpeg does, in every box; and a good file loads as before.
//   fuzz_jpeg SECONDS [SEED [FILE...]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "check.hpp"
#include "error.hpp"
#include "image.hpp"
#include "jpegs.hpp"
#include "orientation.hpp"
#include "planes.hpp"
#include "tile.hpp"

using namespace foreload;
using jpegs::Bytes;

namespace {

std::mt19937_64 generator;

size_t below(size_t count) {
  return count == 0 ? 0 : generator() % count;
}

// Values at which arithmetic overflows, and any others.
uint8_t any_byte() {
  constexpr uint8_t kEdges[] = {0, 1, 2, 3, 4, 7, 8, 0x11, 0x22, 0x41, 63, 64, 0x7F, 0x80, 0xFE, 0xFF};
  return below(2) ? kEdges[below(sizeof(kEdges))] : static_cast<uint8_t>(generator());
}

Bytes slice(const Bytes& bytes, size_t from, size_t size) {
  const auto begin = bytes.begin() + static_cast<ptrdiff_t>(std::min(from, bytes.size()));
  return {begin, begin + std::min(static_cast<ptrdiff_t>(size), bytes.end() - begin)};
}

void insert(Bytes& bytes, size_t at, const Bytes& piece) {
  bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(std::min(at, bytes.size())), piece.begin(),
               piece.end());
}

void erase(Bytes& bytes, size_t at, size_t size) {
  const size_t from = std::min(at, bytes.size()), to = std::min(bytes.size(), from + size);
  bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(from), bytes.begin() + static_cast<ptrdiff_t>(to));
}

struct Segment {
  size_t at, size;  // with marker and length
};

// The segments of the header, up to the first scan's.
std::vector<Segment> segments(const Bytes& bytes) {
  std::vector<Segment> found;
  for (size_t at = 2; at + 4 <= bytes.size() && bytes[at] == 0xFF;) {
    const size_t size = 2 + (size_t{bytes[at + 2]} << 8 | bytes[at + 3]);
    found.push_back({at, size});
    if (bytes[at + 1] == 0xDA) break;
    at += size;
  }
  return found;
}

void change_bytes(Bytes& bytes) {
  const size_t at = below(bytes.size());
  switch (below(4)) {
    case 0:
      bytes[at] ^= static_cast<uint8_t>(1U << below(8));
      break;
    case 1:
      bytes[at] = any_byte();
      break;
    case 2:
      erase(bytes, at, 1 + below(64));
      break;
    default:
      insert(bytes, at, Bytes(1 + below(64), any_byte()));
  }
}

// Changes a field of a header: what matters is in its first bytes.
void change_field(Bytes& bytes) {
  const auto all = segments(bytes);
  if (all.empty()) return;
  const Segment& segment = all[below(all.size())];
  const size_t at = segment.at + 1 + below(std::min<size_t>(segment.size, below(4) ? 24 : 600));
  if (at < bytes.size()) bytes[at] = any_byte();
}

// The restart markers, tables and scans behind the header.
std::vector<size_t> inner_markers(const Bytes& bytes) {
  std::vector<size_t> found;
  const auto header = segments(bytes);
  for (size_t i = header.empty() ? 2 : header.back().at; i + 1 < bytes.size(); ++i) {
    const uint8_t code = bytes[i + 1];
    if (bytes[i] == 0xFF && (code == 0xC4 || code == 0xDA || (code >= 0xD0 && code <= 0xD7)))
      found.push_back(i);
  }
  return found;
}

// Cuts at a marker, removes what lies between two, doubles it, or changes a marker or removes it.
void change_order(Bytes& bytes) {
  const auto found = inner_markers(bytes);
  if (found.empty()) return;
  const size_t at = found[below(found.size())], other = found[below(found.size())];
  const size_t begin = std::min(at, other), size = std::max(at, other) - begin;
  switch (below(5)) {
    case 0:
      bytes.resize(at);
      if (below(2)) insert(bytes, bytes.size(), {0xFF, 0xD9});
      break;
    case 1:
      erase(bytes, begin, size);
      break;
    case 2:
      insert(bytes, begin, slice(bytes, begin, size));
      break;
    case 3:
      bytes[at + 1] = static_cast<uint8_t>(0xD0 + below(8));
      break;
    default:
      erase(bytes, at, 2);
  }
}

// Removes a whole segment, doubles it, or takes it from another file.
void move_segment(Bytes& bytes, const Bytes& other) {
  const auto own = segments(bytes), others = segments(other);
  if (own.empty() || others.empty()) return;
  const Segment& here = own[below(own.size())];
  const Segment& there = others[below(others.size())];
  const Bytes piece =
      below(2) ? slice(bytes, here.at, here.size) : slice(other, there.at, there.size + below(2) * 500);
  const size_t to = own[below(own.size())].at;
  if (below(2)) erase(bytes, here.at, here.size);
  if (below(3)) insert(bytes, to, piece);
}

void place_marker(Bytes& bytes) {
  constexpr uint8_t kMarkers[] = {0xC0, 0xC1, 0xC2, 0xC4, 0xC9, 0xCC, 0xD0, 0xD1, 0xD7,
                                  0xD8, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0xE1, 0xEE, 0xFF};
  const size_t at = below(bytes.size() - 1);
  bytes[at] = 0xFF;
  bytes[at + 1] = kMarkers[below(sizeof(kMarkers))];
}

Bytes mutate(Bytes bytes, const std::vector<Bytes>& corpus) {
  const Bytes& other = corpus[below(corpus.size())];
  for (size_t left = 1 + below(4); left > 0 && bytes.size() > 4; --left) {
    switch (below(10)) {
      case 0:
      case 1:
        change_bytes(bytes);
        break;
      case 8:
      case 9:
        change_order(bytes);
        break;
      case 2:
      case 3:
        change_field(bytes);
        break;
      case 4:
        move_segment(bytes, other);
        break;
      case 5:
        place_marker(bytes);
        break;
      case 6:  // a piece of itself, elsewhere
        insert(bytes, below(bytes.size()), slice(bytes, below(bytes.size()), below(400)));
        break;
      default:  // cut short, or the rest of another file
        bytes.resize(1 + below(bytes.size()));
        if (below(2)) insert(bytes, bytes.size(), slice(other, below(other.size()), other.size()));
    }
  }
  return bytes;
}

Transform any_transform() {
  Transform transform;
  transform.crop = static_cast<Crop>(below(3));
  transform.height = 1 + static_cast<int>(below(60));
  transform.width = 1 + static_cast<int>(below(60));
  transform.shorter = 60 + static_cast<int>(below(20));
  transform.flip = 0.5;
  transform.fast = below(2) == 0;
  transform.output.normalise = below(2) == 0;
  transform.output.channels_last = below(2) == 0;
  if (below(3) == 0) transform.jitter = {0.4F, 0.4F, 0.4F, 0.1F};
  return transform;
}

// Upright, as Pillow's answer is.
DecodedImage as_pillow(const std::string& path, std::span<const uint8_t> bytes) {
  const auto picture = jpegs::Reader::read(bytes.data(), bytes.size());
  if (!picture) throw Error(ErrorKind::decode, "no JPEG", path);
  // What Pillow makes of an unusual one is not known here; but nobody else makes anything of it.
  const int orientation = exif_orientation(bytes).value_or(1);
  DecodedImage image{nullptr, picture->width, picture->height, nullptr};
  if (sideways(orientation)) std::swap(image.width, image.height);
  auto rgb = std::make_shared<Bytes>(picture->rgb.size());
  turn_upright({picture->rgb.data(), static_cast<size_t>(picture->width) * 3}, orientation, image.width,
               image.height, rgb->data());
  image.pixels = rgb->data();
  image.owner = rgb;
  return image;
}

Bytes tried;  // the last mutated file; empty once all is done

// Keeps the file that a check has failed with.
void keep_finding() {
  if (tried.empty()) return;
  const auto path = std::filesystem::temp_directory_path() / "foreload_finding.jpg";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tried.data()), static_cast<std::streamsize>(tried.size()));
  std::fprintf(stderr, "the file is %s\n", path.c_str());
}

size_t native = 0;  // answers of the decoder by itself

void check_box(JpegDecoder& decoder, const Bytes& bytes) {
  if (!decoder.open(bytes)) return;
  const int reduction = below(3) == 0 ? 1 << below(4) : 1;
  const int width = (decoder.width() + reduction - 1) / reduction;
  const int height = (decoder.height() + reduction - 1) / reduction;
  const auto any = [](int count) { return static_cast<int>(below(static_cast<size_t>(count))); };
  Box box{any(width), any(height), 0, 0};
  box.width = 1 + any(width - box.x);
  box.height = 1 + any(height - box.y);
  const auto pixels = decoder.decode(box, reduction);
  if (!pixels) return;
  ++native;
  const auto whole = jpegs::Reader::read(bytes, reduction);
  CHECK(whole && whole->width == width && whole->height == height);
  for (int y = 0; y < box.height; ++y) {
    const size_t from =
        static_cast<size_t>(box.y + y) * static_cast<size_t>(width) + static_cast<size_t>(box.x);
    CHECK(std::memcmp(pixels->pixels + static_cast<size_t>(y) * pixels->stride, whole->rgb.data() + 3 * from,
                      static_cast<size_t>(box.width) * 3) == 0);
  }
}

void check_planes(JpegDecoder& decoder, const Bytes& bytes) {
  if (!decoder.open(bytes) || !decoder.has_planes()) return;
  const Box all{0, 0, decoder.width(), decoder.height()};
  Bytes memory(planes_bytes(all.width, all.height));
  if (!decoder.decode_planes(memory.data())) return;
  ++native;
  const auto whole = jpegs::Reader::read(bytes);
  CHECK(whole && whole->width == all.width && whole->height == all.height);
  PlanesToRgb to_rgb;
  const Pixels rgb = to_rgb.convert(planes_in(memory.data(), all.width, all.height), all);
  const size_t row = static_cast<size_t>(all.width) * 3;
  for (size_t y = 0; y < static_cast<size_t>(all.height); ++y) {
    CHECK(std::memcmp(rgb.pixels + y * rgb.stride, whole->rgb.data() + y * row, row) == 0);
  }
}

// What could be tiled has the same pixels, and can be tiled again.
void check_tiled(const Bytes& bytes) {
  const Bytes tiled = tile_jpeg(bytes, static_cast<int>(below(6)));
  if (tiled.empty()) return;
  CHECK(tile_jpeg(tiled, 2).size() > 0);
  const auto before = jpegs::Reader::read(bytes), after = jpegs::Reader::read(tiled);
  CHECK(before.has_value() == after.has_value());
  if (before) CHECK(before->width == after->width && before->rgb == after->rgb);
}

// Whether libjpeg refuses a file too, or would take far too long for it.
bool is_refused(const Bytes& bytes) {
  const auto scans = inner_markers(bytes);
  const auto is_scan = [&](size_t at) { return bytes[at + 1] == 0xDA; };
  return !jpegs::Reader::read(bytes) || std::count_if(scans.begin(), scans.end(), is_scan) > 500;
}

// A legal header may ask for hundreds of megabytes, which is slow here and finds nothing.
bool small(const Bytes& bytes) {
  for (size_t i = 0; i + 9 < bytes.size(); ++i) {
    if (bytes[i] != 0xFF || bytes[i + 1] < 0xC0 || bytes[i + 1] > 0xCF) continue;
    const size_t height = size_t{bytes[i + 5]} << 8 | bytes[i + 6],
                 width = size_t{bytes[i + 7]} << 8 | bytes[i + 8];
    if (height * width > 2000000) return false;
  }
  return true;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> made;
  for (auto kind : jpegs::kinds()) {
    for (const int size : {8, 40, 130}) {
      kind.orientation = static_cast<int>(below(9));
      made.push_back(jpegs::encode(size, size * 3 / 4 + 1, kind));
      // A crop of these skips damaged intervals, and begins behind them.
      made.push_back(tile_jpeg(made.back(), static_cast<int>(below(5))));
    }
  }
  made.push_back(jpegs::encode(60, 60, {.cmyk = true}));
  return made;
}

}  // namespace

int main(int count, char** arguments) {
  const double seconds = count > 1 ? std::atof(arguments[1]) : 60;
  generator.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  std::vector<Bytes> corpus = seeds();
  for (int i = 3; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const auto path = std::filesystem::temp_directory_path() / ("foreload_fuzz_" + std::to_string(getpid()));
  ImageLoader loader;
  JpegDecoder decoder;
  const auto load = [&](const Bytes& bytes, const Transform& transform, uint64_t seed) {
    // Exactly as large as needed, so that a write past the end is seen.
    const size_t values = static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width) * 3;
    Bytes out(transform.output.normalise ? values * sizeof(float) : values);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    Files files({path.string()}, 0);
    loader.load(files, 0, transform, {seed, 0}, as_pillow, out.data());
    return out;
  };
  // The same picture, as libjpeg alone decodes it.
  const auto show = [&](const Bytes& bytes, const Transform& transform, uint64_t seed) {
    const size_t values = static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width) * 3;
    Bytes out(transform.output.normalise ? values * sizeof(float) : values);
    loader.show(as_pillow("", bytes), 0, transform, {seed, 0}, out.data());
    return out;
  };

  const Transform plain;
  std::vector<Bytes> good;  // except for the last one, which is CMYK
  for (size_t i = 0; i + 1 < seeds().size(); ++i) good.push_back(load(corpus[i], plain, 0));

  std::atexit(keep_finding);
  const auto started = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  size_t runs = 0, loaded = 0, refused = 0;
  while (elapsed() < seconds) {
    const Bytes bytes = mutate(corpus[below(corpus.size())], corpus);
    if (!small(bytes)) continue;
    tried = bytes;
    try {
      switch (below(8)) {
        case 0:
          check_planes(decoder, bytes);
          break;
        case 1:
          check_tiled(bytes);
          break;
        case 2:
        case 3: {
          const Transform transform = any_transform();
          const uint64_t seed = generator();
          const Bytes out = load(bytes, transform, seed);
          // Of a reduced picture libjpeg was asked something else.
          if (!transform.fast) CHECK(out == show(bytes, transform, seed));
          break;
        }
        default:
          check_box(decoder, bytes);
      }
      ++loaded;
    } catch (const Error& error) {
      if (!is_refused(bytes)) std::fprintf(stderr, "%s\n", error.what());
      CHECK(is_refused(bytes));
      ++refused;
    }
    // Nothing of a damaged file stays behind.
    if (++runs % 32 == 0) {
      const size_t i = below(good.size());
      CHECK(load(corpus[i], plain, 0) == good[i]);
    }
  }
  tried.clear();
  std::filesystem::remove(path);
  std::printf("%zu runs in %.0f s: %zu loaded, %zu of them without libjpeg's help, %zu refused, no finding\n",
              runs, elapsed(), loaded, native, refused);
}
