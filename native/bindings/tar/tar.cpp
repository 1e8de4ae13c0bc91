#include "tar.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "crc.hpp"

namespace {

using foreload::TarRole;

nb::object text_of(std::string_view text) {
  return owned(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

void check(int status) {
  if (status < 0) throw nb::python_error();
}

// The names of fields, of which there are few.
class Fields {
 public:
  // Returns the name in lower case.
  const nb::object& of(std::string_view written) {
    for (const auto& [text, object] : known_) {
      if (text == written) return object;
    }
    std::string lower(written);
    std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    return known_.emplace_back(written, text_of(lower)).second;
  }

 private:
  std::vector<std::pair<std::string_view, nb::object>> known_;
};

// The sample that members are added to.
class Unfinished {
 public:
  explicit Unfinished(nb::dict sample) : sample_(std::move(sample)) {}

  bool is_of(std::string_view key) {
    if (!is_known_) {
      if (nb::len(sample_) == 0) return false;
      if (!sample_["__key__"].equal(text_of(key))) return false;
      key_ = key;
      is_known_ = true;
    }
    return key_ == key;
  }

  // Moves the sample, if there is one, to those that are whole.
  void finish(nb::list& whole) {
    if (nb::len(sample_) == 0) return;
    whole.append(sample_);
    sample_ = nb::dict();
    is_known_ = false;
  }

  bool has(const nb::object& field) const {
    const int found = PyDict_Contains(sample_.ptr(), field.ptr());
    check(found);
    return found == 1;
  }

  void add(std::string_view key, const nb::object& field, const uint8_t* content, uint64_t size) {
    if (nb::len(sample_) == 0) {
      check(PyDict_SetItem(sample_.ptr(), name_of_key_.ptr(), text_of(key).ptr()));
      key_ = key;
      is_known_ = true;
    }
    const nb::object bytes = owned(
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(content), static_cast<Py_ssize_t>(size)));
    check(PyDict_SetItem(sample_.ptr(), field.ptr(), bytes.ptr()));
  }

  const nb::dict& sample() const { return sample_; }

 private:
  nb::dict sample_;
  const nb::object name_of_key_ = text_of("__key__");
  std::string_view key_;
  bool is_known_ = false;
};

// The GIL is held: what takes time is to make the objects.
nb::tuple tar_samples(const ConstBytes& data, size_t begin, size_t end, nb::dict sample) {
  if (begin > end || end > data.shape(0)) throw foreload::Error(foreload::ErrorKind::value, "begin:end");
  nb::list whole;
  Fields fields;
  Unfinished unfinished(std::move(sample));
  std::string_view last;
  uint64_t need = foreload::kTarBlock;
  while (end - begin >= foreload::kTarBlock) {
    need = 0;
    const uint8_t* const block = data.data() + begin;
    const auto header = foreload::read_tar_header(block);
    if (!header) break;
    const foreload::TarName name = foreload::split_tar_name(header->name);
    if (name.role == TarRole::unusual) break;
    const bool is_part = name.role == TarRole::part;
    if (is_part && !unfinished.is_of(name.key)) unfinished.finish(whole);
    need = foreload::tar_extent(header->size);
    if (end - begin < need) break;
    if (is_part) {
      const nb::object& field = fields.of(name.field);
      if (unfinished.has(field)) {
        need = 0;
        break;
      }
      unfinished.add(name.key, field, block + foreload::kTarBlock, header->size);
    }
    last = header->name;
    begin += need;
    need = foreload::kTarBlock;
  }
  const nb::object last_name = last.empty() ? nb::none() : text_of(last);
  return nb::make_tuple(whole, unfinished.sample(), begin, need, last_name);
}

// Adds repr(text), which is the text in quotes for most.
void add_repr(std::string& out, nb::handle object) {
  if (PyUnicode_Check(object.ptr())) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
    if (text == nullptr) PyErr_Clear();  // lone surrogates
    const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '\'' && c != '\\'; };
    if (text != nullptr && std::all_of(text, text + size, is_plain)) {
      out.append("'").append(text, static_cast<size_t>(size)).append("'");
      return;
    }
  }
  const nb::object shown = owned(PyObject_Repr(object.ptr()));
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(shown.ptr(), &size);
  if (text == nullptr) throw nb::python_error();
  out.append(text, static_cast<size_t>(size));
}

size_t size_of(PyObject* content) {
  const Py_ssize_t size = PyBytes_Check(content) ? PyBytes_Size(content) : PyObject_Size(content);
  if (size < 0) throw nb::python_error();
  return static_cast<size_t>(size);
}

// The texts ('NAME',  of the names of fields, which samples mostly share.
class FieldTexts {
 public:
  const std::string& of(nb::handle name) {
    for (const auto& [object, text] : known_) {
      if (object.is(name)) return text;
    }
    if (known_.size() >= kMost) known_.clear();
    std::string text = "(";
    add_repr(text, name);
    text += ", ";
    return known_.emplace_back(nb::borrow(name), std::move(text)).second;
  }

 private:
  static constexpr size_t kMost = 16;
  std::vector<std::pair<nb::object, std::string>> known_;
};

std::vector<uint32_t> sample_sums(const nb::list& samples, uint32_t before) {
  std::vector<uint32_t> sums;
  sums.reserve(samples.size());
  const nb::object name_of_key = text_of("__key__");
  FieldTexts texts;
  std::string text;
  std::array<char, 20> digits;
  for (const nb::handle sample : samples) {
    const auto fields = nb::cast<nb::dict>(sample);
    text = "(";
    add_repr(text, fields[name_of_key]);
    const char* separator = ", [";
    for (const auto [name, content] : fields) {
      const auto end = std::to_chars(digits.begin(), digits.end(), size_of(content.ptr())).ptr;
      text.append(separator).append(texts.of(name)).append(digits.begin(), end).push_back(')');
      separator = ", ";
    }
    text += "])";
    sums.push_back(before = foreload::crc32(before, text));
  }
  return sums;
}

}  // namespace

void bind_tar(nb::module_& module) {
  module.def(
      "tar_samples", &tar_samples, nb::arg("data"), nb::arg("begin"), nb::arg("end"), nb::arg("sample"),
      "Read usual members of a tar from data[begin:end]; `sample` is the unfinished one, an empty dict "
      "for none. Return the samples that are whole, the one that is not, where the next member begins, "
      "how many bytes it needs (0: it is for another reader), and the last member's name.");
  module.def("sample_sums", &sample_sums, nb::arg("samples"), nb::arg("before"),
             "For each sample, the CRC-32 of its key and its fields' names and sizes, and of those before.");
}
