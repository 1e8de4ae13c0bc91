#include "pieces.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.hpp"

namespace {

using foreload::PieceTable;

template <typename T>
nb::object to_array(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

// Returns the ids of all texts one after the other; how many each text has, -1 if a piece is unknown, -2 if
// the text is not for this table; and the unknown pieces, each one once.
nb::tuple encode(const PieceTable& table, const nb::list& texts, const PieceTable* more) {
  std::vector<std::string_view> views;
  views.reserve(nb::len(texts));
  for (const nb::handle text : texts) {
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (bytes == nullptr) PyErr_Clear();  // half a surrogate pair
    views.emplace_back(bytes == nullptr ? "" : bytes, bytes == nullptr ? 0 : static_cast<size_t>(size));
  }
  std::vector<int64_t> ids, counts;
  std::vector<std::string> missing;
  {
    const ReleaseGil release;
    for (const std::string_view text : views) {
      const size_t before = ids.size();
      const PieceTable::Outcome outcome = table.encode(text, more, ids, missing);
      counts.push_back(outcome == PieceTable::Outcome::done      ? static_cast<int64_t>(ids.size() - before)
                       : outcome == PieceTable::Outcome::unknown ? -1
                                                                 : -2);
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  }
  return nb::make_tuple(to_array(std::move(ids)), to_array(std::move(counts)), missing);
}

}  // namespace

void bind_pieces(nb::module_& module) {
  nb::class_<PieceTable>(module, "PieceTable", "A table of the ids of text pieces, for byte-level BPE.")
      .def(nb::init<std::vector<std::string>, bool, size_t>(), nb::arg("reserved"), nb::arg("prefix_space"),
           nb::arg("room"))
      .def("encode", &encode, nb::arg("texts"), nb::arg("more").none() = nb::none(),
           "Return the ids of all texts, how many each has (-1: a piece is unknown, -2: it is not for this "
           "table), and the pieces that are neither here nor in `more`.")
      .def(
          "add",
          [](PieceTable& table, std::string_view piece, const std::vector<int32_t>& ids) {
            table.add(piece, ids);
          },
          nb::arg("piece"), nb::arg("ids"));
}
