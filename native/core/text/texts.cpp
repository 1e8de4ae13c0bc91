#include "texts.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "error.hpp"
#include "read.hpp"
#include "spans.hpp"

namespace foreload {

namespace {

constexpr uint64_t kBlock = 64 << 10;
// Samples that lie closer together than this are read at once, up to this many bytes.
constexpr uint64_t kGap = 4 << 10;
constexpr uint64_t kTogether = 256 << 10;

enum State : uint8_t { kEmpty, kBusy, kFilled };

[[noreturn]] void fail_with(int code, const std::string& path) {
  throw Error(ErrorKind::system, std::strerror(code), path, code);
}

FileStamp stamp_of(int file, const std::string& path) {
  struct stat about;
  if (::fstat(file, &about) != 0) fail_with(errno, path);
  if (!S_ISREG(about.st_mode)) {
    throw Error(ErrorKind::system, "not a regular file, so its parts cannot be read in any order", path,
                EINVAL);
  }
  if (about.st_nlink == 0) fail_with(ENOENT, path);
#ifdef __APPLE__
  const timespec modified = about.st_mtimespec;
#else
  const timespec modified = about.st_mtim;
#endif
  return {static_cast<uint64_t>(about.st_size),
          static_cast<int64_t>(modified.tv_sec) * 1000000000 + modified.tv_nsec};
}

int open_file(const std::string& path) {
  // A pipe is opened at once too, and then refused.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail_with(errno, path);
  return file;
}

void compare(const FileStamp& now, const FileStamp& before, const std::string& path) {
  if (now.size == before.size && now.modified == before.modified) return;
  throw Error(ErrorKind::system,
              "the file has changed since it was indexed (" + std::to_string(before.size) + " bytes then, " +
                  std::to_string(now.size) + " now); make the dataset again",
              path, ESTALE);
}

}  // namespace

int OpenFile::descriptor() {
  if (used_ >= 0) return used_;
  int known = descriptor_.load(std::memory_order_acquire);
  if (known >= 0) return used_ = known;
  own_ = Descriptor(open_file(path_));
  used_ = own_;
  if (!may_stay_open(used_)) return used_;
  if (descriptor_.compare_exchange_strong(known, used_, std::memory_order_acq_rel)) return own_.release();
  own_ = Descriptor();  // another thread was first
  return used_ = known;
}

void OpenFile::read(uint64_t place, uint8_t* out, size_t size, size_t samples) {
  PacedMeasure measure(Stage::read, samples);
  measure.add_bytes(size);
  read_at(descriptor(), path_, place, out, size);
}

void OpenFile::check() const {
  if (used_ >= 0) compare(stamp_of(used_, path_), stamp_, path_);
}

SharedCopy::SharedCopy(uint64_t file_size, uint64_t budget)
    : limit_(std::min(file_size, budget)), blocks_(static_cast<size_t>((limit_ + kBlock - 1) / kBlock)) {
  if (blocks_ == 0) return;
  segment_ = Segment::create(static_cast<size_t>(limit_) + blocks_);
  divide();
}

SharedCopy::SharedCopy(uint64_t file_size, uint64_t budget, int file)
    : limit_(std::min(file_size, budget)), blocks_(static_cast<size_t>((limit_ + kBlock - 1) / kBlock)) {
  segment_ = Segment::open(file);
  divide();
}

void SharedCopy::divide() {
  data_ = segment_->memory();
  // Zeroed memory is an array of absent states.
  states_ = reinterpret_cast<std::atomic<uint8_t>*>(data_ + limit_);
}

uint64_t SharedCopy::end_of(size_t block) const {
  return std::min<uint64_t>(limit_, (block + 1) * kBlock);
}

bool SharedCopy::fill(OpenFile& file, size_t block) {
  uint8_t state = states_[block].load(std::memory_order_acquire);
  if (state == kFilled) return true;
  if (state == kBusy || !states_[block].compare_exchange_strong(state, kBusy, std::memory_order_acq_rel)) {
    return state == kFilled;
  }
  try {
    const uint64_t begin = block * kBlock;
    file.read(begin, data_ + begin, static_cast<size_t>(end_of(block) - begin));
    file.check();
  } catch (...) {
    states_[block].store(kEmpty, std::memory_order_release);
    throw;
  }
  states_[block].store(kFilled, std::memory_order_release);
  return true;
}

bool SharedCopy::read(OpenFile& file, uint64_t place, uint8_t* out, size_t size) {
  if (place + size > limit_) return false;
  if (size == 0) return true;
  for (size_t block = place / kBlock; block <= (place + size - 1) / kBlock; ++block) {
    if (!fill(file, block)) return false;
  }
  std::memcpy(out, data_ + place, size);
  return true;
}

uint64_t SharedCopy::filled() const {
  uint64_t sum = 0;
  for (size_t block = 0; block < blocks_; ++block) {
    if (states_[block].load(std::memory_order_acquire) == kFilled) sum += end_of(block) - block * kBlock;
  }
  return sum;
}

LineFile::LineFile(const std::string& path, Split split, char delimiter, size_t threads,
                   const Scanned& scanned) {
  auto file = std::make_shared<File>(File{path, split, delimiter, {}, {}});
  Descriptor own(open_file(path));
  file->stamp = stamp_of(own, path);
  file->starts = find_starts(own, path, file->stamp.size, split, delimiter, threads, scanned);
  compare(stamp_of(own, path), file->stamp, path);
  file_ = std::move(file);
  if (may_stay_open(own)) descriptor_.store(own.release(), std::memory_order_release);
}

LineFile::LineFile(std::shared_ptr<const File> file, size_t first, std::optional<Column> column,
                   std::shared_ptr<SharedCopy> copy)
    : file_(std::move(file)), first_(first), column_(column), copy_(std::move(copy)) {}

LineFile::~LineFile() {
  const int descriptor = descriptor_.load(std::memory_order_acquire);
  if (descriptor >= 0) ::close(descriptor);
}

size_t LineFile::wanted(int64_t sample, size_t most) const {
  const auto length = static_cast<size_t>(end(sample) - begin(sample));
  return column_ ? length : std::min(length, most);
}

void LineFile::read(std::span<const int64_t> samples, size_t most, const Visit& visit, const Fail& fail) {
  std::vector<size_t> order(samples.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return samples[a] < samples[b]; });
  // The line end behind it is read too, since a carriage return may belong to it.
  most = most > SIZE_MAX - 2 ? most : most + 2;
  OpenFile file(file_->path, file_->stamp, descriptor_);
  std::vector<uint8_t> buffer;
  for (size_t first = 0; first < order.size();) {
    const uint64_t start = begin(samples[order[first]]);
    uint64_t stop = start + wanted(samples[order[first]], most);
    size_t last = first + 1;
    for (; last < order.size(); ++last) {
      const int64_t sample = samples[order[last]];
      const uint64_t next = std::max<uint64_t>(stop, begin(sample) + wanted(sample, most));
      if (begin(sample) > stop + kGap || next - start > kTogether) break;
      stop = next;
    }
    read_group(file, samples, Group(order).subspan(first, last - first), most, buffer, visit, fail);
    first = last;
  }
  // Checked afterwards, so that a change while it was read is noticed.
  file.check();
}

void LineFile::read_group(OpenFile& file, std::span<const int64_t> samples, Group group, size_t most,
                          std::vector<uint8_t>& buffer, const Visit& visit, const Fail& fail) {
  const uint64_t start = begin(samples[group.front()]);
  uint64_t stop = start;
  for (const size_t position : group) {
    stop = std::max(stop, begin(samples[position]) + wanted(samples[position], most));
  }
  const auto size = static_cast<size_t>(stop - start);
  try {
    if (buffer.size() < size) buffer.resize(size);
    read_bytes(file, start, buffer.data(), size, group.size());
  } catch (...) {
    for (const size_t position : group) fail(position, std::current_exception());
    return;
  }
  for (const size_t position : group) {
    const int64_t sample = samples[position];
    std::span<const uint8_t> bytes(buffer.data() + (begin(sample) - start), wanted(sample, most));
    // A text that was cut off has no line end.
    if (bytes.size() == end(sample) - begin(sample)) bytes = without_end(bytes, file_->split);
    try {
      visit_one(position, bytes, visit);
    } catch (...) {
      fail(position, std::current_exception());
    }
  }
}

void LineFile::read_bytes(OpenFile& file, uint64_t place, uint8_t* out, size_t size, size_t samples) {
  if (!copy_ || !copy_->read(file, place, out, size)) file.read(place, out, size, samples);
}

void LineFile::visit_one(size_t position, std::span<const uint8_t> bytes, const Visit& visit) const {
  if (!column_) return visit(position, bytes);
  std::vector<std::string> fields;
  const size_t count = split_record(bytes, file_->delimiter, fields);
  if (column_->position >= count) {
    throw Error(ErrorKind::value, "has " + std::to_string(count) + " fields, and field " +
                                      std::to_string(column_->position + 1) + " is wanted");
  }
  // Text with delimiters that was not quoted would otherwise be taken for other fields.
  for (size_t i = column_->count; i < count; ++i) {
    if (fields[i].empty()) continue;
    throw Error(ErrorKind::value, "has " + std::to_string(count) + " fields, and the header " +
                                      std::to_string(column_->count) + "; quote a field that has '" +
                                      (file_->delimiter == '\t' ? "\\t" : std::string(1, file_->delimiter)) +
                                      "' in it: \"...\"");
  }
  const std::string& field = fields[column_->position];
  visit(position, {reinterpret_cast<const uint8_t*>(field.data()), field.size()});
}

uint64_t LineFile::line_of(size_t sample) {
  if (file_->split == Split::lines) return sample + first_ + 1;
  OpenFile file(file_->path, file_->stamp, descriptor_);
  return 1 + count_lines(file.descriptor(), file_->path, begin(static_cast<int64_t>(sample)), file_->split);
}

void LineFile::load(size_t number, size_t parts) {
  OpenFile file(file_->path, file_->stamp, descriptor_);
  const size_t blocks = copy_->blocks();
  for (size_t block = number * blocks / parts; block < (number + 1) * blocks / parts; ++block) {
    copy_->fill(file, block);
  }
}

void WholeFiles::read(std::span<const int64_t> samples, size_t, const Visit& visit, const Fail& fail) {
  std::vector<uint8_t> buffer;
  for (size_t position = 0; position < samples.size(); ++position) {
    try {
      std::span<const uint8_t> bytes;
      {
        PacedMeasure measure(Stage::read, 1);
        bytes = read_file(path(static_cast<size_t>(samples[position])), buffer);
        measure.add_bytes(bytes.size());
      }
      if (bytes.size() >= 3 && std::memcmp(bytes.data(), "\xEF\xBB\xBF", 3) == 0) bytes = bytes.subspan(3);
      visit(position, bytes);
    } catch (...) {
      fail(position, std::current_exception());
    }
  }
}

}  // namespace foreload
