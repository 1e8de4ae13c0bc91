// An image is loaded as by its definition: orientation, box, normalisation; through the cache, too.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "error.hpp"
#include "image.hpp"
#include "jpegs.hpp"
#include "orientation.hpp"

using namespace foreload;

namespace {

std::string write(const std::string& name, const jpegs::Bytes& bytes) {
  const auto path = std::filesystem::temp_directory_path() / ("foreload_" + std::to_string(getpid()) + name);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return path;
}

DecodedImage refuse(const std::string& path, std::span<const uint8_t>) {
  throw Error(ErrorKind::decode, "not for me", path);
}

// Upright pixels by the definition of Exif: where each one is stored.
jpegs::Bytes upright(const jpegs::Bytes& stored, int width, int height, int code) {
  const int w = sideways(code) ? height : width, h = sideways(code) ? width : height;
  jpegs::Bytes out;
  for (int y = 0; y < h; ++y) {
    for (int x = 0; x < w; ++x) {
      const int xs[] = {0, x, width - 1 - x, width - 1 - x, x, y, y, width - 1 - y, width - 1 - y};
      const int ys[] = {0, y, y, height - 1 - y, height - 1 - y, x, height - 1 - x, height - 1 - x, x};
      const uint8_t* from = &stored[static_cast<size_t>(ys[code] * width + xs[code]) * 3];
      out.insert(out.end(), from, from + 3);
    }
  }
  return out;
}

}  // namespace

int main() {
  ImageLoader loader;
  for (int code = 1; code <= 8; ++code) {
    const auto jpeg = jpegs::encode(50, 31, {.orientation = code});
    const DecodedImage image = loader.decode("x.jpg", jpeg, refuse);
    CHECK(image.width == (sideways(code) ? 31 : 50) && image.height == (sideways(code) ? 50 : 31));
    const auto expected = upright(jpegs::decode(jpeg), 50, 31, code);
    CHECK(jpegs::Bytes(image.pixels, image.pixels + expected.size()) == expected);
  }

  const std::string good = write("good.jpg", jpegs::encode(200, 150, {.orientation = 6}));
  const std::string empty = write("empty.jpg", {});
  Transform transform;
  transform.crop = Crop::random;
  transform.flip = 0.5;
  transform.height = transform.width = 32;
  const auto load = [&](Files& files, size_t index, Key key) {
    jpegs::Bytes out(32 * 32 * 3);
    loader.load(files, index, transform, key, refuse, out.data());
    return out;
  };
  Files files({good, empty, good + ".missing"}, 1);
  const auto first = load(files, 0, {1, 2});
  CHECK(first == load(files, 0, {1, 2}));
  CHECK(first != load(files, 0, {1, 3}));
  CHECK_THROWS(load(files, 1, {}), decode);
  CHECK_THROWS(load(files, 2, {}), system);

  // A box of the file, decoded by itself, is what that box of the decoded picture would be.
  jpegs::Bytes shown(32 * 32 * 3);
  std::vector<uint8_t> buffer;
  const auto bytes = files.bytes(0, buffer);
  const DecodedImage whole = loader.decode(good, bytes, refuse);
  loader.show(whole, 0, transform, {1, 2}, shown.data());
  CHECK(shown == first);

  // An image that is kept is loaded without its file; one that is not kept is not.
  std::filesystem::remove(good);
  CHECK(first == load(files, 0, {1, 2}));
  Files unkept({good}, 0);
  CHECK_THROWS(load(unkept, 0, {}), system);

  // The same pixels, normalised, and with channels last; jitter of nothing changes nothing.
  transform.output.normalise = true;
  transform.output.channels_last = true;
  for (float& scale : transform.output.scale) scale = 0.5F;
  std::vector<float> floats(32 * 32 * 3);
  loader.load(files, 0, transform, {1, 2}, refuse, floats.data());
  for (size_t i = 0; i < 32 * 32; ++i) {
    for (size_t c = 0; c < 3; ++c) CHECK(std::abs(floats[i * 3 + c] - 0.5F * first[c * 1024 + i]) < 1e-4F);
  }
  std::filesystem::remove(empty);
}
