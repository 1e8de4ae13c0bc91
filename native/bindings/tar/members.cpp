#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "file_source.hpp"
#include "read.hpp"

namespace {

using foreload::Error;
using foreload::ErrorKind;

// Where the members of samples lie, and how they are called.
class TarMembers {
 public:
  TarMembers(nb::list keys, nb::list names, const Indices& first, const Indices& begins,
             const Indices& lengths, const Indices& kinds)
      : keys_(std::move(keys)),
        names_(std::move(names)),
        first_(copied(first)),
        begins_(copied(begins)),
        lengths_(copied(lengths)),
        kinds_(copied(kinds)) {
    const auto count = static_cast<int64_t>(begins_.size()),
               names_known = static_cast<int64_t>(names_.size());
    bool is_right = lengths_.size() == begins_.size() && kinds_.size() == begins_.size() &&
                    first_.size() == keys_.size() + 1 && first_.front() == 0 && first_.back() == count &&
                    std::ranges::is_sorted(first_);
    for (size_t i = 0; is_right && i < begins_.size(); ++i) {
      is_right = begins_[i] >= 0 && lengths_[i] >= 0 && kinds_[i] >= 0 && kinds_[i] < names_known;
    }
    if (!is_right) throw Error(ErrorKind::value, "members do not fit the samples");
  }

  nb::dict split(int64_t sample, const ConstBytes& bytes) const {
    check(sample);
    return split(static_cast<size_t>(sample), bytes.data(), bytes.shape(0));
  }

  // None if a sample cannot be read.
  nb::object read(const std::shared_ptr<FileSource>& source, const Indices& indices) const {
    const std::span<const int64_t> chosen(indices.data(), indices.shape(0));
    std::vector<size_t> samples;
    std::vector<foreload::Place> places;
    std::vector<nb::object> contents;  // of samples that consist of one member: its bytes, read in place
    size_t size = 0;
    for (const int64_t sample : chosen) {
      check(sample);
      samples.push_back(static_cast<size_t>(sample));
      places.push_back({nullptr, size_of(samples.back())});
      contents.push_back(new_content(samples.back()));
      if (!contents.back().is_valid()) size += places.back().size;
    }
    if (source->files.size() != keys_.size()) throw Error(ErrorKind::value, "files of other samples");
    // Fresh memory would cost more than reading into it. It is this call's own as long as it lasts: a
    // destructor that Python calls meanwhile may read samples, too.
    thread_local std::vector<uint8_t> kept;
    std::vector<uint8_t> memory = std::move(kept);
    if (memory.size() < size) {
      memory.clear();
      memory.resize(size);
    }
    size_t at = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      if (contents[i].is_valid()) {
        places[i].memory = reinterpret_cast<uint8_t*>(PyBytes_AsString(contents[i].ptr()));
        continue;
      }
      places[i].memory = memory.data() + at;
      at += places[i].size;
    }
    if (!read_all(*source, samples, places)) return nb::none();
    nb::list found;
    for (size_t i = 0; i < samples.size(); ++i) {
      found.append(contents[i].is_valid() ? alone(samples[i], contents[i])
                                          : split(samples[i], places[i].memory, places[i].size));
    }
    if (memory.size() <= kKept) kept = std::move(memory);
    return found;
  }

 private:
  static std::vector<int64_t> copied(const Indices& values) {
    return {values.data(), values.data() + values.shape(0)};
  }

  static bool read_all(FileSource& source, std::span<const size_t> samples,
                       std::span<const foreload::Place> places) {
    bool is_read = true;
    const ReleaseGil release;
    const auto done = [&](size_t i, std::span<const uint8_t> bytes, const std::exception_ptr& error) {
      if (error || bytes.size() != places[i].size) {
        is_read = false;
      } else if (bytes.data() != places[i].memory) {
        std::ranges::copy(bytes, places[i].memory);
      }
    };
    return source.reader.read(source.files, samples, places, done).empty() && is_read;
  }

  void check(int64_t sample) const {
    if (sample < 0 || static_cast<size_t>(sample) >= keys_.size()) {
      throw Error(ErrorKind::index, "sample " + std::to_string(sample) + " is out of range");
    }
  }

  // The bytes from the first member to the end of the last.
  uint64_t size_of(size_t sample) const {
    const auto last = static_cast<size_t>(first_[sample + 1]);
    return last == static_cast<size_t>(first_[sample])
               ? 0
               : static_cast<uint64_t>(begins_[last - 1] + lengths_[last - 1]);
  }

  // Memory for the content of a sample that is its only member; an invalid object for any other.
  nb::object new_content(size_t sample) const {
    const auto first = static_cast<size_t>(first_[sample]);
    const bool is_alone = static_cast<size_t>(first_[sample + 1]) == first + 1 && begins_[first] == 0;
    if (!is_alone || lengths_[first] == 0) return {};
    return owned(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(lengths_[first])));
  }

  nb::dict alone(size_t sample, const nb::object& content) const {
    nb::dict found;
    found[name_of_key_] = keys_[sample];
    found[names_[static_cast<size_t>(kinds_[static_cast<size_t>(first_[sample])])]] = content;
    return found;
  }

  nb::dict split(size_t sample, const uint8_t* bytes, size_t size) const {
    nb::dict found;
    found[name_of_key_] = keys_[sample];
    for (auto i = static_cast<size_t>(first_[sample]); i < static_cast<size_t>(first_[sample + 1]); ++i) {
      const auto begin = static_cast<size_t>(begins_[i]), length = static_cast<size_t>(lengths_[i]);
      if (begin > size || length > size - begin)
        throw Error(ErrorKind::value, "a member lies beyond the bytes");
      found[names_[static_cast<size_t>(kinds_[i])]] = owned(PyBytes_FromStringAndSize(
          reinterpret_cast<const char*>(bytes + begin), static_cast<Py_ssize_t>(length)));
    }
    return found;
  }

  static constexpr size_t kKept = 8 << 20;

  const nb::list keys_, names_;
  const nb::object name_of_key_ = owned(PyUnicode_InternFromString("__key__"));
  const std::vector<int64_t> first_, begins_, lengths_, kinds_;
};

}  // namespace

void bind_members(nb::module_& module) {
  nb::class_<TarMembers>(
      module, "TarMembers",
      "The members of samples: the keys of samples, the names of fields, the first member of "
      "each sample and the number of all; where each member begins in its sample, its length, "
      "and which name it has.")
      .def(nb::init<nb::list, nb::list, const Indices&, const Indices&, const Indices&, const Indices&>(),
           nb::arg("keys"), nb::arg("names"), nb::arg("first"), nb::arg("begins"), nb::arg("lengths"),
           nb::arg("kinds"))
      .def("split", nb::overload_cast<int64_t, const ConstBytes&>(&TarMembers::split, nb::const_),
           nb::arg("sample"), nb::arg("bytes"), "Make a sample of its bytes, as they lie in the shard.")
      .def("read", &TarMembers::read, nb::arg("files"), nb::arg("samples"),
           "Read samples and make dicts of them; None if one of them cannot be read.");
}
