#include "view.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>
#include <tuple>
#include <utility>

#include "bindings.hpp"

using foreload::Error;
using foreload::ErrorKind;
using foreload::Transform;

namespace {

foreload::Crop crop_named(const std::string& name) {
  if (name == "none") return foreload::Crop::none;
  if (name == "center") return foreload::Crop::center;
  if (name == "random") return foreload::Crop::random;
  throw Error(ErrorKind::value, "crop must be 'none', 'center' or 'random', got '" + name + "'");
}

void init_view(Transform* transform, const std::string& crop, std::pair<int, int> size, int shorter,
               std::pair<double, double> scale, std::pair<double, double> ratio, double flip,
               std::array<float, 4> jitter, std::array<float, 3> mean, std::array<float, 3> std_,
               bool normalize, bool channels_last, bool fast, bool leave_flip) {
  new (transform) Transform();
  transform->crop = crop_named(crop);
  std::tie(transform->height, transform->width) = size;
  transform->shorter = shorter;
  std::tie(transform->scale[0], transform->scale[1]) = scale;
  std::tie(transform->ratio[0], transform->ratio[1]) = ratio;
  transform->flip = flip;
  transform->fast = fast;
  transform->leave_flip = leave_flip;
  transform->jitter = {jitter[0], jitter[1], jitter[2], jitter[3]};
  transform->output.channels_last = channels_last;
  transform->output.normalise = normalize;
  for (size_t color = 0; color < 3; ++color) {
    transform->output.scale[color] = 1.0F / (255.0F * std_[color]);
    transform->output.bias[color] = -mean[color] / std_[color];
  }
}

nb::tuple view(const Transform& transform, int width, int height, uint64_t seed, uint32_t epoch,
               uint64_t index) {
  foreload::Random random({seed, epoch}, index);
  const foreload::View view = foreload::choose_view(transform, width, height, random);
  return nb::make_tuple(nb::make_tuple(view.box.x, view.box.y, view.box.width, view.box.height),
                        nb::make_tuple(view.full_height, view.full_width),
                        nb::make_tuple(view.top, view.left), view.mirrored);
}

}  // namespace

void bind_view(nb::module_& module) {
  nb::class_<Transform>(module, "Transform",
                        "A transform: the view that is taken of an image, and how it is written.")
      .def("__init__", &init_view, nb::kw_only(), nb::arg("crop"), nb::arg("size"), nb::arg("shorter"),
           nb::arg("scale"), nb::arg("ratio"), nb::arg("flip"), nb::arg("jitter"), nb::arg("mean"),
           nb::arg("std"), nb::arg("normalize"), nb::arg("channels_last"), nb::arg("fast"),
           nb::arg("leave_flip") = false);
  module.def(
      "view", &view, nb::arg("transform"), nb::arg("width"), nb::arg("height"), nb::arg("seed"),
      nb::arg("epoch"), nb::arg("index"),
      "Return the view of an image: (x, y, width, height) of the box, (height, width) that it is resized to, "
      "(top, left) where the output begins in that, whether it is mirrored.");
}
