// Mutated JPEGs through the whole image path: whatever comes in, only Error may come out.
//   fuzz_jpeg SECONDS [SEED] [FILE...]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "error.hpp"
#include "image.hpp"
#include "jpegs.hpp"

using namespace foreload;
using jpegs::Bytes;

namespace {

std::mt19937_64 generator;

size_t below(size_t count) {
  return count == 0 ? 0 : generator() % count;
}

Bytes mutate(Bytes bytes, const std::vector<Bytes>& corpus) {
  const size_t times = 1 + below(4);
  for (size_t i = 0; i < times && bytes.size() > 4; ++i) {
    // Headers are where the interesting fields are.
    const size_t at = below(2) ? below(bytes.size()) : below(std::min<size_t>(bytes.size(), 700));
    switch (below(9)) {
      case 0:
        bytes[at] ^= static_cast<uint8_t>(1U << below(8));
        break;
      case 1:
        bytes[at] = static_cast<uint8_t>(generator());
        break;
      case 2:
        bytes[at] = below(2) ? 0xFF : 0;
        break;
      case 3:
        bytes.resize(at + 1);
        break;
      case 4:
        bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at),
                    bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), at + 1 + below(64))));
        break;
      case 5:
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), 1 + below(64),
                     static_cast<uint8_t>(generator()));
        break;
      case 6: {  // a piece of itself, elsewhere
        const size_t from = below(bytes.size()), size = below(std::min<size_t>(bytes.size() - from, 400));
        const Bytes piece(bytes.begin() + static_cast<ptrdiff_t>(from),
                          bytes.begin() + static_cast<ptrdiff_t>(from + size));
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), piece.begin(), piece.end());
        break;
      }
      case 7: {  // the head of one file, the rest of another
        const Bytes& other = corpus[below(corpus.size())];
        bytes.resize(at);
        bytes.insert(bytes.end(), other.begin() + static_cast<ptrdiff_t>(below(other.size())), other.end());
        break;
      }
      default: {  // a marker
        const uint8_t markers[] = {0xC0, 0xC1, 0xC2, 0xC4, 0xD0, 0xD7, 0xD8,
                                   0xD9, 0xDA, 0xDB, 0xDD, 0xE1, 0xEE};
        bytes[at] = 0xFF;
        if (at + 1 < bytes.size()) bytes[at + 1] = markers[below(sizeof(markers))];
      }
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
  transform.store.normalise = below(2) == 0;
  transform.store.channels_last = below(2) == 0;
  if (below(3) == 0) transform.jitter = {0.4F, 0.4F, 0.4F, 0.1F};
  return transform;
}

DecodedImage refuse(const std::string& path, std::span<const uint8_t>) {
  throw Error(ErrorKind::decode, "no JPEG", path);
}

// A legal header may ask for hundreds of megabytes, which is slow here and finds nothing.
bool small(const Bytes& bytes) {
  for (size_t i = 0; i + 9 < bytes.size(); ++i) {
    if (bytes[i] == 0xFF && bytes[i + 1] >= 0xC0 && bytes[i + 1] <= 0xC2) {
      const size_t height = size_t{bytes[i + 5]} << 8 | bytes[i + 6],
                   width = size_t{bytes[i + 7]} << 8 | bytes[i + 8];
      if (height * width > 4000000) return false;
    }
  }
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  const double seconds = count > 1 ? std::atof(arguments[1]) : 60;
  generator.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  std::vector<Bytes> corpus;
  for (auto kind : jpegs::kinds()) {
    for (const int size : {8, 40, 130}) {
      kind.orientation = static_cast<int>(below(9));
      corpus.push_back(jpegs::encode(size, size * 3 / 4 + 1, kind));
    }
  }
  corpus.push_back(jpegs::encode(60, 60, {.cmyk = true}));
  for (int i = 3; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const auto path = std::filesystem::temp_directory_path() / ("foreload_fuzz_" + std::to_string(getpid()));
  const auto started = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  ImageLoader loader;
  std::vector<float> out;
  size_t runs = 0, loaded = 0, refused = 0;
  while (elapsed() < seconds) {
    const Bytes bytes = mutate(corpus[below(corpus.size())], corpus);
    if (!small(bytes)) continue;
    const Transform transform = any_transform();
    // Exactly as large as it must be, so that a write past the end is seen.
    out = std::vector<float>();
    out.resize(static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width) * 3);
    {
      std::ofstream file(path, std::ios::binary);
      file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    ImageFiles files({path.string()}, 0);
    try {
      loader.load(files, 0, transform, {generator(), 0}, refuse, out.data());
      ++loaded;
    } catch (const Error&) {
      ++refused;
    }
    ++runs;
  }
  std::filesystem::remove(path);
  std::printf("%zu runs in %.0f s: %zu loaded, %zu refused, no finding\n", runs, elapsed(), loaded, refused);
}
