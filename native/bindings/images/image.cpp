#include "image.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "bindings.hpp"
#include "failures.hpp"
#include "file_source.hpp"
#include "pool.hpp"
#include "tile.hpp"

namespace {

using foreload::DecodedImage;
using foreload::Error;
using foreload::ErrorKind;
using foreload::Fallback;
using foreload::IdleLoaders;
using foreload::ImageCache;
using foreload::ImageCosts;
using foreload::ImageLoader;
using foreload::Key;
using foreload::SampleStore;
using foreload::Transform;
using Decoded = nb::ndarray<const uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;

ImageLoader& this_threads_loader() {
  thread_local ImageLoader loader;
  return loader;
}

nb::object to_text(const std::string& path) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

// The bytes of a name as the file system has them; those that are no UTF-8 are surrogates in Python.
std::string to_path(const nb::str& name) {
  const nb::object bytes = nb::steal(PyUnicode_EncodeFSDefault(name.ptr()));
  if (!bytes.is_valid()) nb::raise_python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr()))};
}

// Calls decode(path, bytes) -> ndarray of height x width x 3 bytes, under the GIL.
Fallback python_fallback(nb::handle decode) {
  return [decode](const std::string& path, std::span<const uint8_t> bytes) {
    const AcquireGil acquire;
    const nb::object result = sleep_if_exiting([&] {
      return decode(to_text(path), nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    });
    std::shared_ptr<Decoded> image(new Decoded(nb::cast<Decoded>(result)), [](Decoded* array) {
      const AcquireGil acquire;
      delete array;
    });
    const uint8_t* pixels = image->data();
    const int height = static_cast<int>(image->shape(0)), width = static_cast<int>(image->shape(1));
    return DecodedImage{pixels, width, height, std::move(image)};
  };
}

// The images of a dataset, shared by its batches.
struct ImageSource : FileSource {
  using FileSource::FileSource;

  ImageCosts costs{files.size()};
  IdleLoaders idle_loaders;
};

void check_forms(const ImageSource& source, const SampleStore& store,
                 const std::optional<ConstBytes>& forms) {
  if (!forms || forms->shape(0) != source.files.size() || store.samples() != forms->shape(0)) {
    throw Error(ErrorKind::value, "a store needs a form for each image");
  }
}

// A batch of images, made without Python if the native decoder supports their format.
class ImageJob : public foreload::Job {
 public:
  ImageJob(std::shared_ptr<ImageSource> source, const Transform& transform, const Indices& indices,
           uint64_t seed, uint32_t epoch, Bytes out, nb::callable fallback,
           std::shared_ptr<SampleStore> store, std::optional<ConstBytes> forms,
           std::optional<std::vector<Bytes>> given, bool decode_late, std::optional<Bytes> mirrored)
      : Job(indices.shape(0), source->grain(1, kDepth / 4)),
        source_(std::move(source)),
        transform_(transform),
        indices_(indices.data(), indices.data() + indices.shape(0)),
        key_{seed, epoch},
        out_(std::move(out)),
        fallback_(std::move(fallback)),
        store_(std::move(store)),
        forms_(std::move(forms)),
        given_(given ? std::move(*given) : std::vector<Bytes>()),
        decode_late_(decode_late),
        mirrored_(std::move(mirrored)) {
    if (!given_.empty() && given_.size() != indices_.size()) {
      throw Error(ErrorKind::value, "given must hold the bytes of each image");
    }
    if (store_) check_forms(*source_, *store_, forms_);
    check_samples(indices_, source_->files.size(), "images");
    sample_bytes_ = transform.sample_bytes();
    if (out_.shape(0) != sample_bytes_ * indices_.size()) {
      throw Error(ErrorKind::value, "out must hold " + std::to_string(sample_bytes_) + " bytes per image");
    }
    if (transform.leave_flip != mirrored_.has_value() ||
        (mirrored_ && mirrored_->shape(0) != indices_.size())) {
      throw Error(ErrorKind::value, "mirrored must hold a byte per image if flips are left, and only then");
    }
  }
  ~ImageJob() override {
    const AcquireGil acquire;
    failures_.clear();
    out_ = Bytes();
    given_.clear();
    mirrored_.reset();
    fallback_.reset();
    forms_.reset();
  }

  void run(size_t begin, size_t end, size_t) override {
    const Fallback fallback = python_fallback(fallback_);
    std::unique_ptr<ImageLoader> loader = source_->idle_loaders.take();
    std::vector<size_t> missing, positions;
    const bool alone = end - begin == 1 && !source_->files.direct();
    for (size_t i = begin; i < end; ++i) {
      // Cached images need not be read; the others are loaded once they have been read.
      if (!given_.empty()) {
        loader->set_input({given_[i].data(), given_[i].shape(0)});
        load(*loader, i, fallback);
        loader->set_input({});
      } else if (alone || (store_ && store_->contains(static_cast<size_t>(indices_[i])))) {
        load(*loader, i, fallback);
      } else {
        missing.push_back(static_cast<size_t>(indices_[i]));
        positions.push_back(i);
      }
    }
    using Clock = std::chrono::steady_clock;
    Clock::duration loading{};
    const auto done = [&](size_t k, std::span<const uint8_t> bytes, std::exception_ptr error) {
      const Clock::time_point begun = store_ ? Clock::now() : Clock::time_point();
      // An image of a changed shard must not get into the cache.
      if (!error && store_ && source_->files.in_shards()) {
        error = source_->files.change(source_->files.extent(missing[k]).file, source_->files.direct());
      }
      if (error) {
        failures_.add(positions[k], error);
        return;
      }
      loader->set_input(bytes);
      load(*loader, positions[k], fallback);
      loader->set_input({});
      if (store_) loading += Clock::now() - begun;
    };
    if (!missing.empty()) {
      const Clock::time_point begun = Clock::now();
      for (const auto& [k, error] : source_->reader.read(source_->files, missing, {}, done)) {
        failures_.add(positions[k], error);
      }
      const std::chrono::duration<double> reading = Clock::now() - begun - loading;
      if (store_) source_->costs.read_together(missing, reading.count());
    }
    source_->idle_loaders.put_back(std::move(loader));
  }

  std::vector<std::pair<size_t, nb::object>> failures() { return failures_.take(); }

 private:
  void load(ImageLoader& loader, size_t i, const Fallback& fallback) {
    try {
      const auto index = static_cast<size_t>(indices_[i]);
      uint8_t* const out = out_.data() + i * sample_bytes_;
      if (store_) {
        const ImageCache cache{store_.get(), forms_->data(), &source_->costs, decode_late_};
        loader.load(cache, source_->files, index, transform_, key_, fallback, out);
      } else {
        loader.load(source_->files, index, transform_, key_, fallback, out);
      }
      if (mirrored_) mirrored_->data()[i] = transform_.flip > 0 && loader.mirrored();
    } catch (...) {
      failures_.add(i, std::current_exception());
    }
  }

  std::shared_ptr<ImageSource> source_;
  Transform transform_;
  std::vector<int64_t> indices_;
  Key key_;
  Bytes out_;
  nb::object fallback_;
  std::shared_ptr<SampleStore> store_;
  std::optional<ConstBytes> forms_;
  std::vector<Bytes> given_;
  bool decode_late_;
  std::optional<Bytes> mirrored_;
  size_t sample_bytes_ = 0;
  Failures failures_;
};

std::span<const uint8_t> span_of(const nb::bytes& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.c_str()), bytes.size()};
}

// Returns what decode(loader) decodes without the GIL, as an array; `path` is for errors.
template <typename Decode>
nb::object decoded(const std::string& path, const Decode& decode) {
  auto* image = new DecodedImage;
  nb::capsule owner(image, [](void* pointer) noexcept { delete static_cast<DecodedImage*>(pointer); });
  {
    const ReleaseGil release;
    try {
      *image = decode(this_threads_loader());
    } catch (Error& error) {
      if (error.file.empty()) error.file = path;
      throw;
    }
  }
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(
      image->pixels, {static_cast<size_t>(image->height), static_cast<size_t>(image->width), 3}, owner));
}

nb::object plan_view(const Transform& transform, nb::bytes bytes, uint64_t seed, uint32_t epoch,
                     size_t index) {
  const auto span = span_of(bytes);
  std::optional<foreload::PlannedView> plan;
  {
    const ReleaseGil release;
    plan = this_threads_loader().plan(span, index, transform, {seed, epoch});
  }
  if (!plan) return nb::none();
  const foreload::View& view = plan->view;
  return nb::make_tuple(plan->orientation, plan->width, plan->height, view.box.x, view.box.y, view.box.width,
                        view.box.height, view.full_height, view.full_width, view.top, view.left,
                        static_cast<int>(view.mirrored));
}

nb::object decode_rgb(nb::str name, nb::bytes bytes, nb::callable fallback) {
  const std::string path = to_path(name);
  const Fallback others = python_fallback(fallback);
  const auto span = span_of(bytes);
  return decoded(path, [&](ImageLoader& loader) { return loader.decode(path, span, others); });
}

nb::object decode_cached(ImageSource& source, size_t index, nb::str name, nb::callable fallback,
                         SampleStore& store, const ConstBytes& forms, const std::optional<nb::bytes>& given) {
  if (index >= source.files.size()) {
    throw Error(ErrorKind::index, "there is no image " + std::to_string(index));
  }
  check_forms(source, store, forms);
  const Fallback others = python_fallback(fallback);
  const ImageCache cache{&store, forms.data(), &source.costs};
  const auto input = given ? span_of(*given) : std::span<const uint8_t>();
  const std::string path = to_path(name);
  return decoded(path, [&](ImageLoader& loader) {
    loader.set_input(input);
    return loader.decode(cache, source.files, index, path, others);
  });
}

void costs(const ImageSource& source, nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
  const size_t count = source.files.size();
  if (out.shape(0) != 5 || out.shape(1) != count) throw Error(ErrorKind::value, "out must be 5 x images");
  for (size_t i = 0; i < count; ++i) {
    out(0, i) = source.costs.read[i].load(std::memory_order_relaxed);
    out(1, i) = source.costs.decode[i].load(std::memory_order_relaxed);
    out(2, i) = source.costs.encoded[i].load(std::memory_order_relaxed);
    out(3, i) = source.costs.pixels[i].load(std::memory_order_relaxed);
    out(4, i) = source.costs.has_planes[i].load(std::memory_order_relaxed);
  }
}

void states(const ImageSource& source, const Indices& indices, const Int64s& out) {
  const size_t count = indices.shape(0);
  if (out.shape(0) != count) throw Error(ErrorKind::value, "out must have an item for each index");
  std::vector<int64_t> samples(indices.data(), indices.data() + count);
  check_samples(samples, source.files.size(), "images");
  int64_t* const to = out.data();
  const ReleaseGil release;
  for (size_t i = 0; i < count; ++i) to[i] = source.files.state(static_cast<size_t>(samples[i]));
}

nb::bytes tile(nb::bytes jpeg, int interval) {
  const std::span<const uint8_t> span(reinterpret_cast<const uint8_t*>(jpeg.c_str()), jpeg.size());
  std::vector<uint8_t> tiled;
  {
    const ReleaseGil release;
    tiled = foreload::tile_jpeg(span, interval);
  }
  return to_bytes(std::span<const uint8_t>(tiled));
}

void transform_rgb(const Transform& transform, Decoded image, uint64_t seed, Bytes out, uint32_t epoch,
                   size_t index) {
  if (out.shape(0) != transform.sample_bytes()) throw Error(ErrorKind::value, "out must hold one sample");
  const DecodedImage decoded{image.data(), static_cast<int>(image.shape(1)), static_cast<int>(image.shape(0)),
                             nullptr};
  Transform whole = transform;
  whole.leave_flip = false;  // there is no batch to say so
  if (decoded.width < 1 || decoded.height < 1) throw Error(ErrorKind::value, "the image has no pixels");
  uint8_t* const to = out.data();
  const ReleaseGil release;
  this_threads_loader().show(decoded, index, whole, {seed, epoch}, to);
}

}  // namespace

void bind_image(nb::module_& module) {
  nb::class_<ImageSource, FileSource>(module, "ImageFiles", "Encoded images, and what loading them cost.")
      .def("__init__", &init_files<ImageSource>, nb::arg("paths"), nb::arg("keep") = 0,
           nb::arg("extents").none() = nb::none(), nb::arg("stamps").none() = nb::none(),
           nb::arg("direct") = false)
      .def("costs", &costs, nb::arg("out"),
           "Write to the rows of `out`, per image: seconds to read, seconds to decode, bytes of the file, "
           "pixels, whether it can be kept as planes.")
      .def("states", &states, nb::arg("indices"), nb::arg("out"),
           "Write to `out` (int64) for each image a number that changes with its file; -1: there is none.");
  module.def("decode_cached", &decode_cached, nb::arg("files"), nb::arg("index"), nb::arg("path"),
             nb::arg("fallback"), nb::arg("store"), nb::arg("forms"), nb::arg("given").none() = nb::none(),
             "Decode a whole upright image through a store, from the bytes `given` if it is not there.");
  nb::class_<ImageJob, foreload::Job>(module, "ImageJob", "A batch of images.")
      .def(nb::init<std::shared_ptr<ImageSource>, const Transform&, const Indices&, uint64_t, uint32_t, Bytes,
                    nb::callable, std::shared_ptr<SampleStore>, std::optional<ConstBytes>,
                    std::optional<std::vector<Bytes>>, bool, std::optional<Bytes>>(),
           nb::arg("files"), nb::arg("transform"), nb::arg("indices"), nb::arg("seed"), nb::arg("epoch"),
           nb::arg("out"), nb::arg("fallback"), nb::arg("store").none() = nb::none(),
           nb::arg("forms").none() = nb::none(), nb::arg("given").none() = nb::none(),
           nb::arg("decode_late") = false, nb::arg("mirrored").none() = nb::none())
      .def("failures", &ImageJob::failures,
           "Return the samples that failed: (position, exception), in order.");
  module.def("decode_rgb", &decode_rgb, nb::arg("path"), nb::arg("bytes"), nb::arg("fallback"),
             "Decode the whole upright image to height x width x 3 bytes; `path` is for error messages.");
  module.def(
      "plan_view", &plan_view, nb::arg("transform"), nb::arg("bytes"), nb::arg("seed"), nb::arg("epoch"),
      nb::arg("index"),
      "Return what a transform takes of a JPEG: Exif orientation; width and height of the upright image; "
      "x, y, width, height of the box; height and width that it is resized to; top and left of the output in "
      "that; whether it is mirrored. None if it is no whole JPEG of the usual kind (YCbCr, 8 bits, "
      "Huffman).");
  module.def("tile_jpeg", &tile, nb::arg("jpeg"), nb::arg("interval") = 0,
             "Return the same JPEG with restart markers; empty if it cannot have them.");
  module.def("transform_rgb", &transform_rgb, nb::arg("transform"), nb::arg("image"), nb::arg("seed"),
             nb::arg("out"), nb::arg("epoch") = 0, nb::arg("index") = 0,
             "Apply a transform to height x width x 3 bytes.");
}
