#include "store.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bindings.hpp"

namespace {

using foreload::Error;
using foreload::ErrorKind;
using foreload::Keeping;
using foreload::Store;
using Flags = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_length(size_t length, size_t expected, const char* name) {
  if (length == expected) return;
  throw Error(ErrorKind::value, std::string(name) + " must have " + std::to_string(expected) + " entries, got " +
                                    std::to_string(length));
}

size_t checked(const Store& store, size_t sample) {
  if (sample < store.samples()) return sample;
  throw Error(ErrorKind::index, "the cache knows no sample " + std::to_string(sample));
}

void follow_accesses(Store& store, const Indices& accesses, const Flags& keep, const Flags& retained) {
  check_length(keep.shape(0), accesses.shape(0), "keep");
  check_length(retained.shape(0), store.samples(), "retained");
  const nb::gil_scoped_release release;
  for (size_t t = 0; t < accesses.shape(0); ++t) checked(store, static_cast<size_t>(accesses.data()[t]));
  store.follow(accesses.data(), accesses.shape(0), keep.data(), retained.data());
}

void follow_members(Store& store, const Flags& members) {
  check_length(members.shape(0), store.samples(), "members");
  const nb::gil_scoped_release release;
  store.follow(members.data());
}

void follow_rule(Store& store, const std::string& rule) {
  store.follow(rule == "recent" ? Keeping::recent : Keeping::all);
}

// A copy of what is kept, True where the caller has claimed the sample, None where nothing is kept of it, False
// where another worker is loading it and the caller does not wait.
nb::object request(Store& store, size_t sample, bool wait) {
  std::unique_ptr<uint8_t[]> copy;
  Store::Found found;
  {
    const nb::gil_scoped_release release;
    Store::Section section(store);
    found = store.request(section, sample, wait);
    if (found.outcome == Store::Outcome::hit) {
      copy.reset(new uint8_t[found.size > 0 ? found.size : 1]);
      std::memcpy(copy.get(), found.bytes, found.size);
    }
  }
  if (found.outcome == Store::Outcome::claimed) return nb::bool_(true);
  if (found.outcome == Store::Outcome::busy) return nb::bool_(false);
  if (found.outcome == Store::Outcome::miss) return nb::none();
  uint8_t* const bytes = copy.release();
  const nb::capsule owner(bytes, [](void* memory) noexcept { delete[] static_cast<uint8_t*>(memory); });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(bytes, {found.size}, owner));
}

// Puts what lies in `parts` one behind the other.
bool put(Store& store, size_t sample, const std::vector<Flags>& parts) {
  size_t size = 0;
  for (const Flags& part : parts) size += part.shape(0);
  checked(store, sample);
  const nb::gil_scoped_release release;
  uint8_t* to = store.reserve(sample, size, foreload::Form::packed);
  if (to == nullptr) return false;
  for (const Flags& part : parts) {
    std::memcpy(to, part.data(), part.shape(0));
    to += part.shape(0);
  }
  store.commit(sample);
  return true;
}

nb::dict counts(const Store& store) {
  const Store::Counts counts = store.counts();
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
  return out;
}

}  // namespace

void bind_store(nb::module_& module) {
  nb::class_<Store>(module, "Store", "Samples in memory that processes share.")
      .def(nb::new_(&Store::create), nb::arg("samples"), nb::arg("bytes"), nb::arg("accesses") = 0,
           nb::arg("most") = 0)
      .def_static("open", &Store::open, nb::arg("file"))
      .def_prop_ro("file", &Store::file, "A descriptor for Store.open in another process; -1 if memory is private.")
      .def("__len__", &Store::samples)
      .def("follow_accesses", &follow_accesses, nb::arg("accesses"), nb::arg("keep"), nb::arg("retained"))
      .def("follow_members", &follow_members, nb::arg("members"))
      .def("follow_rule", &follow_rule, nb::arg("rule"), "'all' or 'recent'.")
      .def("request", &request, nb::arg("sample"), nb::arg("wait") = true,
           "A copy of what is kept, True where the caller has claimed it (put or abandon it), None where it is not "
           "kept, False where another worker is loading it and `wait` is false.")
      .def("put", &put, nb::arg("sample"), nb::arg("parts"))
      .def(
          "abandon", [](Store& store, size_t sample) { store.abandon(checked(store, sample)); }, nb::arg("sample"))
      .def(
          "contains", [](const Store& store, size_t sample) { return store.contains(checked(store, sample)); },
          nb::arg("sample"))
      .def(
          "note_cost",
          [](Store& store, size_t sample, uint64_t nanoseconds) {
            store.note_cost(checked(store, sample), nanoseconds);
          },
          nb::arg("sample"), nb::arg("nanoseconds"))
      .def("sizes",
           [](const Store& store, Counts out) {
             check_length(out.shape(0), store.samples(), "out");
             store.sizes(out.data());
           })
      .def("costs",
           [](const Store& store, Counts last, Counts before) {
             check_length(last.shape(0), store.samples(), "last");
             check_length(before.shape(0), store.samples(), "before");
             store.costs(last.data(), before.data());
           })
      .def("residents",
           [](const Store& store, Bytes out) {
             check_length(out.shape(0), store.samples(), "out");
             store.residents(out.data());
           })
      .def("belongs_to", &Store::belongs_to, nb::arg("owner"), "Whether `owner` was the first to ask.")
      .def("first_to_tell", &Store::first_to_tell, "True for one caller of all.")
      .def("clear", &Store::clear, nb::call_guard<nb::gil_scoped_release>())
      .def("counts", &counts);
}
