// Loads mutated JPEGs through the whole image path: whatever the bytes are, only Error may be thrown, and a
// good file loads as before.
//   fuzz_jpeg SECONDS [SEED [FILE...]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "check.hpp"
#include "error.hpp"
#include "image.hpp"
#include "jpegs.hpp"
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
    switch (below(8)) {
      case 0:
      case 1:
        change_bytes(bytes);
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

DecodedImage refuse(const std::string& path, std::span<const uint8_t>) {
  throw Error(ErrorKind::decode, "no JPEG", path);
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
  const auto load = [&](const Bytes& bytes, const Transform& transform, uint64_t seed) {
    // Exactly as large as needed, so that a write past the end is seen.
    const size_t values = static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width) * 3;
    Bytes out(transform.output.normalise ? values * sizeof(float) : values);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    Files files({path.string()}, 0);
    loader.load(files, 0, transform, {seed, 0}, refuse, out.data());
    return out;
  };

  const Transform plain;
  std::vector<Bytes> good;  // except for the last one, which is CMYK
  for (size_t i = 0; i + 1 < seeds().size(); ++i) good.push_back(load(corpus[i], plain, 0));

  const auto started = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  size_t runs = 0, loaded = 0, refused = 0;
  while (elapsed() < seconds) {
    const Bytes bytes = mutate(corpus[below(corpus.size())], corpus);
    if (!small(bytes)) continue;
    try {
      const size_t way = below(8);
      if (way == 0) {
        loader.decode("mutated", bytes, refuse);
      } else if (way == 1) {
        // What could be tiled can be read again, however damaged it was.
        const Bytes tiled = tile_jpeg(bytes, static_cast<int>(below(6)));
        if (!tiled.empty()) CHECK(tile_jpeg(tiled, 2).size() > 0);
        if (!tiled.empty()) loader.decode("tiled", tiled, refuse);
      } else {
        load(bytes, any_transform(), generator());
      }
      ++loaded;
    } catch (const Error&) {
      ++refused;
    }
    // Nothing of a damaged file stays behind.
    if (++runs % 32 == 0) {
      const size_t i = below(good.size());
      CHECK(load(corpus[i], plain, 0) == good[i]);
    }
  }
  std::filesystem::remove(path);
  std::printf("%zu runs in %.0f s: %zu loaded, %zu refused, no finding\n", runs, elapsed(), loaded, refused);
}
