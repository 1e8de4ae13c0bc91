#include "packing.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.hpp"

namespace {

using foreload::Error;
using foreload::ErrorKind;

// The memory of int64 arrays of one dimension, held so that nothing frees it.
class Documents {
 public:
  explicit Documents(const nb::list& arrays) {
    held_.reserve(nb::len(arrays));
    spans_.reserve(nb::len(arrays));
    for (const nb::handle array : arrays) {
      Py_buffer& buffer = held_.emplace_back();
      if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_FORMAT | PyBUF_ND) != 0) {
        held_.pop_back();
        throw nb::python_error();
      }
      const std::string_view format(buffer.format);
      if (buffer.ndim != 1 || buffer.itemsize != sizeof(int64_t) || (format != "l" && format != "q")) {
        throw Error(ErrorKind::value, "documents must be contiguous arrays of int64");
      }
      spans_.emplace_back(static_cast<const int64_t*>(buffer.buf), static_cast<size_t>(buffer.shape[0]));
    }
  }
  std::span<const std::span<const int64_t>> spans() const { return spans_; }

 private:
  struct Held : std::vector<Py_buffer> {
    Held() = default;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
      for (Py_buffer& buffer : *this) PyBuffer_Release(&buffer);
    }
  };

  Held held_;
  std::vector<std::span<const int64_t>> spans_;
};

// The rows of a packed dataset. It keeps copies, so that nothing can change what has been checked.
class PackedRows {
 public:
  PackedRows(const Indices& documents, const Indices& columns, const Indices& lengths, const Indices& first,
             int64_t length)
      : documents_(copied(documents)),
        columns_(copied(columns)),
        lengths_(copied(lengths)),
        first_(copied(first)),
        length_(length) {
    const auto count = static_cast<int64_t>(documents_.size());
    bool is_right = columns_.size() == documents_.size() && lengths_.size() == documents_.size() &&
                    !first_.empty() && first_.front() == 0 && first_.back() == count;
    for (size_t row = 0; is_right && row + 1 < first_.size(); ++row) {
      int64_t end = 0;
      is_right = first_[row] <= first_[row + 1] && first_[row + 1] <= count;
      for (int64_t i = first_[row]; is_right && i < first_[row + 1]; ++i) {
        is_right = columns_[i] >= end && lengths_[i] >= 0 && lengths_[i] <= length_ - columns_[i];
        end = columns_[i] + lengths_[i];
      }
    }
    if (!is_right) throw Error(ErrorKind::value, "pieces must lie in their rows, one after the other");
  }

  void copy(const nb::list& documents, const Indices& starts, const Int64Rows& tokens, int64_t pad) const {
    const size_t rows = first_.size() - 1;
    if (starts.shape(0) != documents_.size() || tokens.shape(0) != rows ||
        tokens.shape(1) != static_cast<size_t>(length_)) {
      throw Error(ErrorKind::value, "there must be a start per piece, and room for all rows");
    }
    const Documents held(documents);
    const ReleaseGil release;
    for (size_t row = 0; row < rows; ++row) {
      foreload::copy_row(pieces(), starts.data(), held.spans(), static_cast<int64_t>(row), length_, pad,
                         tokens.data() + row * static_cast<size_t>(length_));
    }
  }

  void mark(const Indices& rows, const Int64Rows& documents, const Int64Rows& positions) const {
    const size_t count = rows.shape(0);
    for (const Int64Rows* out : {&documents, &positions}) {
      if (out->shape(0) != count || out->shape(1) != static_cast<size_t>(length_)) {
        throw Error(ErrorKind::value, "out must have one row per index, as long as those of the documents");
      }
    }
    const ReleaseGil release;
    const auto known = static_cast<int64_t>(first_.size()) - 1;
    for (size_t i = 0; i < count; ++i) {
      const int64_t row = rows.data()[i];
      if (row < 0 || row >= known) {
        throw Error(ErrorKind::index, "row " + std::to_string(row) + " is out of range");
      }
      const int64_t place = static_cast<int64_t>(i) * length_;
      foreload::mark_row(pieces(), row, length_, documents.data() + place, positions.data() + place);
    }
  }

 private:
  foreload::PackedPieces pieces() const {
    return {documents_.data(), columns_.data(), lengths_.data(), first_.data()};
  }
  static std::vector<int64_t> copied(const Indices& values) {
    return {values.data(), values.data() + values.shape(0)};
  }

  std::vector<int64_t> documents_, columns_, lengths_, first_;
  int64_t length_;
};

}  // namespace

void bind_packing(nb::module_& module) {
  module.def(
      "best_fit",
      [](const Indices& lengths, int64_t length, const Int64s& rows) {
        if (rows.shape(0) != lengths.shape(0)) throw Error(ErrorKind::value, "there must be a row per piece");
        const ReleaseGil release;
        const auto chosen = foreload::best_fit({lengths.data(), lengths.shape(0)}, length);
        std::copy(chosen.begin(), chosen.end(), rows.data());
      },
      nb::arg("lengths"), nb::arg("length"), nb::arg("rows").noconvert(),
      "Choose a row for each piece: the longest first, each where it leaves the least room.");
  nb::class_<PackedRows>(
      module, "PackedRows",
      "Documents in rows: for each piece its document, column and length; for each row its "
      "first piece, and the number of all.")
      .def(nb::init<const Indices&, const Indices&, const Indices&, const Indices&, int64_t>(),
           nb::arg("documents"), nb::arg("columns"), nb::arg("lengths"), nb::arg("first"), nb::arg("length"))
      .def("copy", &PackedRows::copy, nb::arg("documents"), nb::arg("starts"), nb::arg("tokens").noconvert(),
           nb::arg("pad"),
           "Copy the tokens of all rows from documents, in which pieces begin at these tokens.")
      .def("mark", &PackedRows::mark, nb::arg("rows"), nb::arg("documents").noconvert(),
           nb::arg("positions").noconvert(),
           "Fill in, for each token of these rows, its document (-1: padding) and its position in it.");
}
