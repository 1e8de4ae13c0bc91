// Sources of texts: the lines of a file, or a file each.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "files.hpp"
#include "lines.hpp"
#include "segment.hpp"

namespace foreload {

class TextSource {
 public:
  // Called with a position in `samples`, in any order. What it throws is passed to Fail.
  using Visit = std::function<void(size_t, std::span<const uint8_t>)>;
  using Fail = std::function<void(size_t, std::exception_ptr)>;

  virtual ~TextSource() = default;
  virtual size_t size() const = 0;
  // Visits the texts of these samples; it need not read more than their first `most` bytes.
  virtual void read(std::span<const int64_t> samples, size_t most, const Visit& visit, const Fail& fail) = 0;
  virtual std::string path(size_t sample) const = 0;
};

// The state of a file, to see whether it has changed.
struct FileStamp {
  uint64_t size;
  int64_t modified;  // nanoseconds
};

// A file that is opened when something is first read from it, and must not change. It stays open in
// `descriptor` if the process may have as many files open.
class OpenFile {
 public:
  OpenFile(const std::string& path, const FileStamp& stamp, std::atomic<int>& descriptor)
      : path_(path), stamp_(stamp), descriptor_(descriptor) {}

  // `samples`: how many are read, for the spans. Throws Error(system).
  void read(uint64_t place, uint8_t* out, size_t size, size_t samples = 0);
  int descriptor();
  // Throws Error(system) if something was read and the file has changed.
  void check() const;

 private:
  const std::string& path_;
  const FileStamp& stamp_;
  std::atomic<int>& descriptor_;
  Descriptor own_;
  int used_ = -1;
};

// The beginning of a file in memory that processes share, filled block by block as it is read.
class SharedCopy {
 public:
  SharedCopy(uint64_t file_size, uint64_t budget);
  // Opens what another process made.
  SharedCopy(uint64_t file_size, uint64_t budget, int file);

  size_t blocks() const { return blocks_; }
  int file() const { return segment_ ? segment_->file() : -1; }
  // Copies bytes out of the memory, and reads them from the file first if they are not there; false if they
  // lie behind the limit, or another worker is reading them at this moment.
  bool read(OpenFile& file, uint64_t place, uint8_t* out, size_t size);
  // Reads a block if it is not there; false if another worker is reading it.
  bool fill(OpenFile& file, size_t block);
  // How many bytes are there.
  uint64_t filled() const;

 private:
  void divide();
  uint64_t end_of(size_t block) const;

  uint64_t limit_;
  size_t blocks_;
  std::unique_ptr<Segment> segment_;
  std::atomic<uint8_t>* states_ = nullptr;
  uint8_t* data_ = nullptr;
};

// A field of each record, and how many there are in the header.
struct Column {
  size_t position;
  size_t count = SIZE_MAX;  // without a header
};

// The samples of one file: its lines, or the records of a table.
class LineFile : public TextSource {
 public:
  // Shared by all views of a file.
  struct File {
    std::string path;
    Split split;
    char delimiter;
    FileStamp stamp;
    LineStarts starts;
  };

  // Finds the samples. Throws Error(system).
  LineFile(
      const std::string& path, Split split, char delimiter, size_t threads,
      const Scanned& scanned = [](uint64_t) {});
  // A view of what was found before: from start number `first` on, or one field of each record. The file is
  // opened when it is first read.
  LineFile(std::shared_ptr<const File> file, size_t first, std::optional<Column> column,
           std::shared_ptr<SharedCopy> copy);
  ~LineFile() override;
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  size_t size() const override { return file_->starts.size() - 1 - first_; }
  void read(std::span<const int64_t> samples, size_t most, const Visit& visit, const Fail& fail) override;
  std::string path(size_t) const override { return file_->path; }
  // The number of the line in which a sample begins, from 1.
  uint64_t line_of(size_t sample);
  // Brings a part of the file into the shared copy: part `number` of `parts`.
  void load(size_t number, size_t parts);

  const std::shared_ptr<const File>& file() const { return file_; }
  size_t first() const { return first_; }
  std::optional<Column> column() const { return column_; }
  const std::shared_ptr<SharedCopy>& copy() const { return copy_; }

 private:
  using Group = std::span<const size_t>;  // positions

  void read_group(OpenFile& file, std::span<const int64_t> samples, Group group, size_t most,
                  std::vector<uint8_t>& buffer, const Visit& visit, const Fail& fail);
  void read_bytes(OpenFile& file, uint64_t place, uint8_t* out, size_t size, size_t samples);
  void visit_one(size_t position, std::span<const uint8_t> bytes, const Visit& visit) const;
  size_t wanted(int64_t sample, size_t most) const;
  uint64_t begin(int64_t sample) const { return file_->starts[first_ + static_cast<size_t>(sample)]; }
  uint64_t end(int64_t sample) const { return begin(sample + 1); }

  std::shared_ptr<const File> file_;
  size_t first_ = 0;
  std::optional<Column> column_;
  std::shared_ptr<SharedCopy> copy_;
  std::atomic<int> descriptor_{-1};
};

// Files that are one sample each.
class WholeFiles : public TextSource {
 public:
  explicit WholeFiles(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  size_t size() const override { return paths_.size(); }
  void read(std::span<const int64_t> samples, size_t most, const Visit& visit, const Fail& fail) override;
  std::string path(size_t sample) const override { return paths_.at(sample); }
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<std::string> paths_;
};

}  // namespace foreload
