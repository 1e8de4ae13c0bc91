#include "small.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "gather.hpp"
#include "pool.hpp"

using foreload::Error;
using foreload::ErrorKind;
using foreload::Key;
using foreload::Measure;
using foreload::SmallImage;
using foreload::SmallImages;
using foreload::SmallTransform;
using foreload::Stage;

namespace {

using Images = nb::ndarray<const uint8_t, nb::ndim<4>, nb::device::cpu>;

void init_small(SmallTransform* transform, bool random, std::pair<int, int> size, int padding, double flip,
                int cutout, std::array<float, 4> jitter, std::array<float, 3> mean, std::array<float, 3> std_,
                bool normalize, bool channels_last) {
  new (transform) SmallTransform();
  transform->random = random;
  std::tie(transform->height, transform->width) = size;
  transform->padding = padding;
  transform->flip = flip;
  transform->cutout = cutout;
  transform->jitter = {jitter[0], jitter[1], jitter[2], jitter[3]};
  transform->output.channels_last = channels_last;
  transform->output.normalise = normalize;
  for (size_t color = 0; color < 3; ++color) {
    transform->output.scale[color] = 1.0F / (255.0F * std_[color]);
    transform->output.bias[color] = -mean[color] / std_[color];
    transform->cover[color] =
        static_cast<uint8_t>(std::clamp(std::nearbyint(255.0F * mean[color]), 0.0F, 255.0F));
  }
}

// A batch of images that lie in one array.
class SmallImageJob : public foreload::Job {
 public:
  SmallImageJob(Images images, const SmallTransform& transform, const Indices& indices, uint64_t seed,
                uint32_t epoch, Bytes out)
      : Job(indices.shape(0), grain(transform)),
        images_(std::move(images)),
        transform_(transform),
        indices_(indices.data(), indices.data() + indices.shape(0)),
        key_{seed, epoch},
        out_(std::move(out)) {
    foreload::check_indices(indices_.data(), indices_.size(), static_cast<int64_t>(images_.shape(0)));
    image_ = {nullptr,           images_.stride(1),   images_.stride(2),
              images_.stride(3), size_of(images_, 2), size_of(images_, 3)};
    if (images_.shape(1) != 3 || !transform.fits(image_.height, image_.width)) {
      throw Error(ErrorKind::value, "images must be count x 3 x height x width, and hold the crop");
    }
    if (out_.shape(0) != transform.sample_bytes() * indices_.size()) {
      throw Error(ErrorKind::value,
                  "out must hold " + std::to_string(transform.sample_bytes()) + " bytes per image");
    }
  }
  ~SmallImageJob() override {
    const AcquireGil acquire;
    images_ = Images();
    out_ = Bytes();
  }

  void run(size_t begin, size_t end, size_t) override {
    Measure measure(Stage::transform, end - begin);
    const size_t bytes = transform_.sample_bytes();
    measure.add_bytes((end - begin) * bytes);
    SmallImages images;
    SmallImage image = image_;
    const auto count = static_cast<int64_t>(images_.shape(0));
    for (size_t i = begin; i < end; ++i) {
      const int64_t index = indices_[i] < 0 ? indices_[i] + count : indices_[i];
      image.pixels = images_.data() + index * images_.stride(0);
      foreload::Random random(key_, static_cast<uint64_t>(index));
      images.show(image, transform_, random, out_.data() + i * bytes);
    }
  }

 private:
  static int size_of(const Images& images, size_t axis) { return static_cast<int>(images.shape(axis)); }
  // Runs of about 200 us: short ones would be mostly about sharing them.
  static size_t grain(const SmallTransform& transform) {
    constexpr size_t kValues = 200000;
    const size_t values = 3 * static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width);
    return std::max<size_t>(1, kValues / values);
  }

  Images images_;
  SmallImage image_;
  SmallTransform transform_;
  std::vector<int64_t> indices_;
  Key key_;
  Bytes out_;
};

}  // namespace

void bind_small(nb::module_& module) {
  nb::class_<SmallTransform>(module, "SmallTransform", "What is made of small images in memory.")
      .def("__init__", &init_small, nb::kw_only(), nb::arg("random"), nb::arg("size"), nb::arg("padding"),
           nb::arg("flip"), nb::arg("cutout"), nb::arg("jitter"), nb::arg("mean"), nb::arg("std"),
           nb::arg("normalize"), nb::arg("channels_last"));
  nb::class_<SmallImageJob, foreload::Job>(module, "SmallImageJob", "A batch of small images in memory.")
      .def(nb::init<Images, const SmallTransform&, const Indices&, uint64_t, uint32_t, Bytes>(),
           nb::arg("images"), nb::arg("transform"), nb::arg("indices"), nb::arg("seed"), nb::arg("epoch"),
           nb::arg("out"));
}
