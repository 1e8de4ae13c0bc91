#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "bindings.hpp"
#include "characters.hpp"
#include "failures.hpp"
#include "pool.hpp"
#include "texts.hpp"

namespace {

using foreload::Column;
using foreload::Error;
using foreload::ErrorKind;
using foreload::LineFile;
using foreload::LineStarts;
using foreload::SharedCopy;
using foreload::Split;
using foreload::TextSource;
using foreload::WholeFiles;

void check_samples(const std::vector<int64_t>& samples, size_t count) {
  for (const int64_t sample : samples) {
    if (sample < 0 || sample >= static_cast<int64_t>(count)) {
      throw Error(ErrorKind::index, "index " + std::to_string(sample) + " is out of range for " +
                                        std::to_string(count) + " texts");
    }
  }
}

std::vector<int64_t> checked(const Indices& indices, const TextSource& source) {
  std::vector<int64_t> samples(indices.data(), indices.data() + indices.shape(0));
  check_samples(samples, source.size());
  return samples;
}

// Reads texts; an error that concerns all of them is a failure of each.
void read_all(TextSource& source, std::span<const int64_t> samples, size_t most,
              const TextSource::Visit& visit, const TextSource::Fail& fail) {
  try {
    source.read(samples, most, visit, fail);
  } catch (...) {
    for (size_t position = 0; position < samples.size(); ++position) fail(position, std::current_exception());
  }
}

// A batch of texts as code points, each row padded with zeroes.
class CharacterJob : public foreload::Job {
 public:
  CharacterJob(std::shared_ptr<TextSource> source, const Indices& indices, Int64Rows out, Int64s lengths,
               size_t grain)
      : Job(indices.shape(0), grain),
        source_(std::move(source)),
        samples_(checked(indices, *source_)),
        out_(std::move(out)),
        lengths_(std::move(lengths)) {
    if (out_.shape(0) != samples_.size() || lengths_.shape(0) != samples_.size()) {
      throw Error(ErrorKind::value, "out and lengths must have a row per index");
    }
  }
  ~CharacterJob() override {
    const AcquireGil acquire;
    failures_.clear();
    out_ = Int64Rows();
    lengths_ = Int64s();
  }

  void run(size_t begin, size_t end, size_t) override {
    const foreload::Measure measure(foreload::Stage::decode, end - begin);
    const size_t width = out_.shape(1);
    const auto visit = [&](size_t position, std::span<const uint8_t> text) {
      int64_t* const row = out_.data() + (begin + position) * width;
      const size_t length = foreload::decode_utf8(text, width, row);
      std::fill(row + length, row + width, 0);
      lengths_.data()[begin + position] = static_cast<int64_t>(length);
    };
    const auto fail = [&](size_t position, std::exception_ptr error) {
      failures_.add(begin + position, std::move(error));
    };
    read_all(*source_, std::span(samples_).subspan(begin, end - begin), 4 * width, visit, fail);
  }

  std::vector<std::pair<size_t, nb::object>> failures() { return failures_.take(); }

 private:
  std::shared_ptr<TextSource> source_;
  std::vector<int64_t> samples_;
  Int64Rows out_;
  Int64s lengths_;
  Failures failures_;
};

// Returns the texts as bytes, None for those that failed; and the failures.
nb::object read_texts(TextSource& source, const Indices& indices) {
  const std::vector<int64_t> samples = checked(indices, source);
  std::vector<std::string> texts(samples.size());
  Failures failures;
  {
    const ReleaseGil release;
    read_all(
        source, samples, SIZE_MAX,
        [&](size_t position, std::span<const uint8_t> text) {
          texts[position].assign(text.begin(), text.end());
        },
        [&](size_t position, std::exception_ptr error) { failures.add(position, std::move(error)); });
  }
  nb::list result;
  for (const std::string& text : texts) result.append(nb::bytes(text.data(), text.size()));
  auto failed = failures.take();
  for (const auto& [position, error] : failed) result[position] = nb::none();
  return nb::make_tuple(result, failed);
}

Split split_named(const std::string& name) {
  if (name == "lines") return Split::lines;
  if (name == "filled") return Split::filled;
  if (name == "records") return Split::records;
  throw Error(ErrorKind::value, "split must be 'lines', 'filled' or 'records', got '" + name + "'");
}

const char* name_of(Split split) {
  return split == Split::lines ? "lines" : split == Split::filled ? "filled" : "records";
}

std::string to_string(const nb::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

void init_lines(LineFile* lines, const nb::bytes& path, const std::string& split, char delimiter,
                size_t threads, const nb::callable& scanned) {
  const std::string name = to_string(path);
  const Split how = split_named(split);
  const ReleaseGil release;
  new (lines) LineFile(name, how, delimiter, threads, [&](uint64_t done) {
    const AcquireGil acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    sleep_if_exiting([&] { scanned(done); });
  });
}

nb::tuple get_state(const LineFile& lines) {
  const LineFile::File& file = *lines.file();
  const std::vector<uint32_t>& low = file.starts.low();
  const Column column = lines.column().value_or(Column{});
  return nb::make_tuple(nb::bytes(file.path.data(), file.path.size()), name_of(file.split),
                        std::string(1, file.delimiter), file.stamp.size, file.stamp.modified,
                        nb::bytes(reinterpret_cast<const char*>(low.data()), low.size() * sizeof(uint32_t)),
                        file.starts.carries(), lines.first(), lines.column().has_value(), column.position,
                        column.count);
}

void set_state(LineFile& lines, const nb::tuple& state) {
  const auto bytes = nb::cast<nb::bytes>(state[5]);
  std::vector<uint32_t> low(bytes.size() / sizeof(uint32_t));
  std::copy_n(bytes.c_str(), bytes.size(), reinterpret_cast<char*>(low.data()));
  auto file = std::make_shared<LineFile::File>(LineFile::File{
      to_string(nb::cast<nb::bytes>(state[0])),
      split_named(nb::cast<std::string>(state[1])),
      nb::cast<std::string>(state[2])[0],
      {nb::cast<uint64_t>(state[3]), nb::cast<int64_t>(state[4])},
      LineStarts(std::move(low), nb::cast<std::vector<uint64_t>>(state[6])),
  });
  std::optional<Column> column;
  if (nb::cast<bool>(state[8])) column = {nb::cast<size_t>(state[9]), nb::cast<size_t>(state[10])};
  new (&lines) LineFile(std::move(file), nb::cast<size_t>(state[7]), column, nullptr);
}

std::shared_ptr<LineFile> keep_lines(const LineFile& lines, uint64_t budget, int file) {
  const uint64_t size = lines.file()->stamp.size;
  auto copy = file < 0 ? std::make_shared<SharedCopy>(size, budget)
                       : std::make_shared<SharedCopy>(size, budget, file);
  return std::make_shared<LineFile>(lines.file(), lines.first(), lines.column(), std::move(copy));
}

void init_texts(WholeFiles* files, const std::vector<nb::bytes>& paths) {
  std::vector<std::string> copies;
  copies.reserve(paths.size());
  for (const nb::bytes& path : paths) copies.push_back(to_string(path));
  new (files) WholeFiles(std::move(copies));
}

std::vector<nb::bytes> text_paths(const WholeFiles& files) {
  std::vector<nb::bytes> paths;
  paths.reserve(files.size());
  for (const std::string& path : files.paths()) paths.emplace_back(path.data(), path.size());
  return paths;
}

std::vector<nb::bytes> split_record(nb::bytes record, char delimiter) {
  std::vector<std::string> fields;
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(record.c_str()), record.size());
  const size_t count = foreload::split_record(bytes, delimiter, fields);
  std::vector<nb::bytes> result;
  for (size_t i = 0; i < count; ++i) result.emplace_back(fields[i].data(), fields[i].size());
  return result;
}

}  // namespace

void bind_text(nb::module_& module) {
  nb::class_<TextSource>(module, "TextSource", "A source of texts, by their number.")
      .def("__len__", &TextSource::size)
      .def("read", &read_texts, nb::arg("indices"),
           "Return the bytes of each text, None if it failed; and (position, exception) for each that did.")
      .def(
          "path",
          [](const TextSource& source, size_t index) {
            const std::string path = source.path(index);
            return nb::bytes(path.data(), path.size());
          },
          nb::arg("index"));
  nb::class_<LineFile, TextSource>(module, "LineFile", "The lines of a file, or the records of a table.")
      .def("__init__", &init_lines, nb::arg("path"), nb::arg("split"), nb::arg("delimiter"),
           nb::arg("threads"), nb::arg("scanned"),
           "Find the samples; scanned(bytes) is called now and then with the number of bytes done.")
      .def(
          "part",
          [](const LineFile& lines, size_t first, size_t column, std::optional<size_t> columns) {
            return std::make_shared<LineFile>(lines.file(), lines.first() + first,
                                              Column{column, columns.value_or(SIZE_MAX)}, lines.copy());
          },
          nb::arg("first"), nb::arg("column"), nb::arg("columns").none(),
          "Return a view from record `first` on: one field of each, of as many as the header has.")
      .def("keep", &keep_lines, nb::arg("budget"), nb::arg("file") = -1,
           "Return a view of which the first bytes are kept in shared memory, of this process or an open "
           "file of "
           "it.")
      .def("load", &LineFile::load, nb::arg("number"), nb::arg("parts"), nb::call_guard<ReleaseGil>(),
           "Fill a part of the shared memory.")
      .def("line_of", &LineFile::line_of, nb::arg("index"), nb::call_guard<ReleaseGil>())
      .def_prop_ro("size", [](const LineFile& lines) { return lines.file()->stamp.size; })
      .def_prop_ro("modified", [](const LineFile& lines) { return lines.file()->stamp.modified; })
      .def_prop_ro(
          "index_bytes",
          [](const LineFile& lines) { return lines.file()->starts.low().capacity() * sizeof(uint32_t); })
      .def_prop_ro("kept", [](const LineFile& lines) { return lines.copy() ? lines.copy()->filled() : 0; })
      .def_prop_ro("file", [](const LineFile& lines) { return lines.copy() ? lines.copy()->file() : -1; })
      .def("__getstate__", &get_state)
      .def("__setstate__", &set_state);
  nb::class_<WholeFiles, TextSource>(module, "WholeFiles", "Files that are one text each.")
      .def("__init__", &init_texts, nb::arg("paths"))
      .def("__getstate__", &text_paths)
      .def("__setstate__",
           [](WholeFiles& files, const std::vector<nb::bytes>& paths) { init_texts(&files, paths); });
  nb::class_<CharacterJob, foreload::Job>(module, "CharacterJob", "A batch of texts as code points.")
      .def(nb::init<std::shared_ptr<TextSource>, const Indices&, Int64Rows, Int64s, size_t>(),
           nb::arg("source"), nb::arg("indices"), nb::arg("out"), nb::arg("lengths"), nb::arg("grain"))
      .def("failures", &CharacterJob::failures);
  module.def("split_record", &split_record, nb::arg("record"), nb::arg("delimiter"),
             "Return the fields of a record of a table.");
}
