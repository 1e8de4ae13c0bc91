#include "store.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "segment.hpp"

namespace {

using foreload::Error;
using foreload::ErrorKind;
using foreload::Mapping;
using foreload::Rule;
using foreload::SampleStore;

// The most bytes that are copied with the interpreter's lock. To give it to another thread and to get it back
// takes longer, as each has to be woken up.
constexpr size_t kHeldCopy = 64 << 10;

size_t checked(const SampleStore& store, size_t sample) {
  if (sample < store.samples()) return sample;
  throw Error(ErrorKind::index, "the cache knows no sample " + std::to_string(sample));
}

void follow_accesses(SampleStore& store, const Indices& accesses, const ConstBytes& keep,
                     const ConstBytes& retained) {
  check_length(keep.shape(0), accesses.shape(0), "keep");
  check_length(retained.shape(0), store.samples(), "retained");
  const ReleaseGil release;
  for (size_t t = 0; t < accesses.shape(0); ++t) checked(store, static_cast<size_t>(accesses.data()[t]));
  store.follow(accesses.data(), accesses.shape(0), keep.data(), retained.data());
}

void follow_members(SampleStore& store, const ConstBytes& members) {
  check_length(members.shape(0), store.samples(), "members");
  const ReleaseGil release;
  store.follow(members.data());
}

void follow_rule(SampleStore& store, const std::string& rule) {
  store.follow(rule == "recent" ? Rule::recent : Rule::all);
}

void follow_owned(SampleStore& store, uint64_t seed, uint64_t ranks, const Indices& own, uint64_t limit) {
  store.follow({seed, 0}, ranks, own.data(), own.shape(0), limit);
}

// Returns a copy of what is kept, True if the caller has claimed the sample, None if it is not kept, False if
// another worker is loading it and the caller does not wait.
nb::object request(SampleStore& store, size_t sample, bool wait) {
  size_t size = 0;
  std::unique_ptr<uint8_t[]> copy = store.copy_hit(sample, kHeldCopy, size);
  if (copy == nullptr) {
    SampleStore::Found found;
    {
      const ReleaseGil release;
      SampleStore::Section section(store);
      found = store.request(section, sample, wait);
      if (found.outcome == SampleStore::Outcome::hit) {
        size = found.size;
        copy.reset(new uint8_t[size > 0 ? size : 1]);
        std::memcpy(copy.get(), found.bytes, size);
      }
    }
    if (found.outcome == SampleStore::Outcome::claimed) return nb::bool_(true);
    if (found.outcome == SampleStore::Outcome::busy) return nb::bool_(false);
    if (found.outcome == SampleStore::Outcome::miss) return nb::none();
  }
  uint8_t* const bytes = copy.release();
  const nb::capsule owner(bytes, [](void* memory) noexcept { delete[] static_cast<uint8_t*>(memory); });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(bytes, {size}, owner));
}

// Puts a sample that consists of `parts`.
bool put(SampleStore& store, size_t sample, const std::vector<ConstBytes>& parts) {
  size_t size = 0;
  for (const ConstBytes& part : parts) size += part.shape(0);
  checked(store, sample);
  const ReleaseGil release;
  uint8_t* to = store.reserve(sample, size, foreload::Form::packed);
  if (to == nullptr) return false;
  for (const ConstBytes& part : parts) {
    std::memcpy(to, part.data(), part.shape(0));
    to += part.shape(0);
  }
  store.commit(sample);
  return true;
}

size_t spill_to(SampleStore& store, int folder, const nb::bytes& key, bool first) {
  foreload::Blake2::Key copy;
  check_length(key.size(), copy.size(), "key");
  std::memcpy(copy.data(), key.data(), copy.size());
  const ReleaseGil release;
  return store.spill_to(folder, copy, first);
}

// Returns what was spilled of a sample, or None.
nb::object spilled(SampleStore& store, size_t sample) {
  checked(store, sample);
  auto* const bytes = new std::vector<uint8_t>;
  const nb::capsule owner(bytes,
                          [](void* memory) noexcept { delete static_cast<std::vector<uint8_t>*>(memory); });
  size_t size = 0;
  uint32_t form = 0;
  bool found = false;
  {
    const ReleaseGil release;
    found = store.spill() != nullptr && store.spill()->read(sample, *bytes, size, form) &&
            static_cast<foreload::Form>(form) == foreload::Form::packed;
  }
  if (!found) return nb::none();
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(bytes->data(), {size}, owner));
}

// Returns 0, or the errno of a failure of the disk.
int spill(SampleStore& store, size_t sample, const std::vector<ConstBytes>& parts) {
  checked(store, sample);
  std::vector<std::span<const uint8_t>> spans;
  for (const ConstBytes& part : parts) spans.emplace_back(part.data(), part.shape(0));
  const ReleaseGil release;
  if (store.spill() == nullptr) return 0;
  store.spill()->write(sample, static_cast<uint32_t>(foreload::Form::packed), spans);
  return store.spill()->failure();
}

nb::dict counts(const SampleStore& store) {
  const SampleStore::Counts counts = store.counts();
  nb::dict out;
  out["hits"] = counts.hits;
  out["misses"] = counts.misses;
  out["kept"] = counts.kept;
  out["refused"] = counts.refused;
  out["waits"] = counts.waits;
  out["unforeseen"] = counts.unforeseen;
  out["used"] = counts.used;
  out["peak"] = counts.peak;
  out["room"] = counts.room;
  out["samples"] = counts.samples;
  return out;
}

}  // namespace

void bind_store(nb::module_& module) {
  nb::class_<Mapping>(module, "Mapping", "A part of a file in memory.")
      .def(nb::init<int, size_t, size_t>(), nb::arg("file"), nb::arg("offset"), nb::arg("size"))
      .def_prop_ro(
          "memory",
          [](Mapping& mapping) {
            return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(mapping.memory(), {mapping.size()});
          },
          nb::rv_policy::reference_internal);
  nb::class_<SampleStore>(module, "Store", "Samples in memory that processes share.")
      .def(nb::new_(&SampleStore::create), nb::arg("samples"), nb::arg("bytes"), nb::arg("accesses") = 0,
           nb::arg("most") = 0, nb::arg("hashed") = false)
      .def_static("open", &SampleStore::open, nb::arg("file"))
      .def_prop_ro("file", &SampleStore::file,
                   "A descriptor for Store.open in another process; -1 if the memory is private.")
      .def("__len__", &SampleStore::samples)
      .def_prop_ro(
          "is_hashed", &SampleStore::is_hashed,
          "Whether there are entries only for samples that are kept, so that no plan can be followed.")
      .def("follow_accesses", &follow_accesses, nb::arg("accesses"), nb::arg("keep"), nb::arg("retained"))
      .def("follow_members", &follow_members, nb::arg("members"))
      .def("follow_rule", &follow_rule, nb::arg("rule"),
           "Keep 'all' samples that there is room for, or the 'recent' ones.")
      .def(
          "follow_owned", &follow_owned, nb::arg("seed"), nb::arg("ranks"), nb::arg("own"), nb::arg("limit"),
          "Keep the samples of position below `limit` in the permutation that `seed` names, in epoch 0, that "
          "these of its ranks own.")
      .def("request", &request, nb::arg("sample"), nb::arg("wait") = true,
           "Return a copy of what is kept, True if the caller has claimed it (put or abandon it), None if it "
           "is "
           "not kept, False if another worker is loading it and `wait` is false.")
      .def("put", &put, nb::arg("sample"), nb::arg("parts"))
      .def(
          "abandon", [](SampleStore& store, size_t sample) { store.abandon(checked(store, sample)); },
          nb::arg("sample"))
      .def(
          "contains",
          [](SampleStore& store, size_t sample) { return store.contains(checked(store, sample)); },
          nb::arg("sample"))
      .def(
          "note_cost",
          [](SampleStore& store, size_t sample, uint64_t nanoseconds) {
            store.note_cost(checked(store, sample), nanoseconds);
          },
          nb::arg("sample"), nb::arg("nanoseconds"))
      .def(
          "note_size",
          [](SampleStore& store, size_t sample, size_t size) {
            store.note_size(checked(store, sample), size);
          },
          nb::arg("sample"), nb::arg("size"))
      .def(
          "is_measured",
          [](const SampleStore& store, size_t sample) { return store.is_measured(checked(store, sample)); },
          nb::arg("sample"))
      .def(
          "drop", [](SampleStore& store, size_t sample) { store.drop(checked(store, sample)); },
          nb::arg("sample"))
      .def_prop_rw(
          "due", &SampleStore::due, &SampleStore::set_due,
          "The number of requests that are due since the store was made, by the end of the present epoch.")
      .def("uses",
           [](const SampleStore& store, Int64s out) {
             check_length(out.shape(0), store.samples(), "out");
             store.uses(out.data());
           })
      .def("sizes",
           [](const SampleStore& store, Int64s out) {
             check_length(out.shape(0), store.samples(), "out");
             store.sizes(out.data());
           })
      .def("costs",
           [](const SampleStore& store, Int64s last, Int64s before) {
             check_length(last.shape(0), store.samples(), "last");
             check_length(before.shape(0), store.samples(), "before");
             store.costs(last.data(), before.data());
           })
      .def("residents",
           [](const SampleStore& store, Bytes out) {
             check_length(out.shape(0), store.samples(), "out");
             store.residents(out.data());
           })
      .def("belongs_to", &SampleStore::belongs_to, nb::arg("owner"),
           "Return whether `owner` is the first that this was called with.")
      .def("first_to_tell", &SampleStore::first_to_tell, "Return True for the first call in any process.")
      .def(
          "spill_to", &spill_to, nb::arg("folder"), nb::arg("key"), nb::arg("first"),
          "Spill to the folder that has this descriptor, with a secret key of 32 bytes. Return the number of "
          "samples in it if this is the `first` process.")
      .def("spilled", &spilled, nb::arg("sample"))
      .def(
          "is_spilled",
          [](const SampleStore& store, size_t sample) {
            checked(store, sample);
            return store.spill() != nullptr && store.spill()->holds(sample);
          },
          nb::arg("sample"))
      .def("spill", &spill, nb::arg("sample"), nb::arg("parts"))
      .def(
          "spill_rejected",
          [](const SampleStore& store) { return store.spill() == nullptr ? 0 : store.spill()->rejected(); },
          "Return how many files and records of the folder were damaged, or not written with the key.")
      .def(
          "needs_check",
          [](const SampleStore& store, size_t sample) {
            checked(store, sample);
            return store.spill() != nullptr && store.spill()->needs_check(sample);
          },
          nb::arg("sample"))
      .def(
          "note_check",
          [](SampleStore& store, size_t sample, bool is_same) {
            checked(store, sample);
            if (store.spill() != nullptr) store.spill()->note_check(sample, is_same);
          },
          nb::arg("sample"), nb::arg("is_same"))
      .def("spill_wrong",
           [](const SampleStore& store) { return store.spill() == nullptr ? -1 : store.spill()->wrong(); })
      .def("spill_failure",
           [](const SampleStore& store) { return store.spill() == nullptr ? 0 : store.spill()->failure(); })
      .def("clear", &SampleStore::clear, nb::call_guard<ReleaseGil>())
      .def("limit", &SampleStore::limit, nb::arg("bytes"), nb::call_guard<ReleaseGil>(),
           "Limit what the samples may take from now on, at most to what the store was created with. What is "
           "over is dropped.")
      .def("counts", &counts);
}
