#include "lines.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "error.hpp"

namespace foreload {

namespace {

constexpr size_t kReadBlock = 1 << 18;
constexpr uint64_t kChunk = 32 << 20;
// A longer line that holds only white space counts as a sample.
constexpr uint64_t kBlank = 8;

// Calls visit(place, bytes) for one block after the other of [begin, end).
template <typename Visit>
void each_block(int file, const std::string& path, uint64_t begin, uint64_t end, const Visit& visit) {
  std::vector<uint8_t> block(static_cast<size_t>(std::min<uint64_t>(kReadBlock, end - begin)));
  for (uint64_t place = begin; place < end; place += block.size()) {
    const auto size = static_cast<size_t>(std::min<uint64_t>(block.size(), end - place));
    read_at(file, path, place, block.data(), size);
    visit(place, std::span<const uint8_t>(block.data(), size));
  }
}

template <typename Visit>
void each_line_end(std::span<const uint8_t> bytes, const Visit& visit) {
  const uint8_t* at = bytes.data();
  const uint8_t* const end = at + bytes.size();
  while (at < end) {
    const void* found = std::memchr(at, '\n', static_cast<size_t>(end - at));
    if (found == nullptr) return;
    at = static_cast<const uint8_t*>(found) + 1;
    visit(static_cast<size_t>(at - bytes.data()));
  }
}

// The places behind the line ends of each chunk, relative to it.
std::vector<std::vector<uint32_t>> scan_chunks(int file, const std::string& path, uint64_t begin,
                                               uint64_t end, size_t threads, const Scanned& scanned) {
  const auto count = static_cast<size_t>((end - begin + kChunk - 1) / kChunk);
  std::vector<std::vector<uint32_t>> found(count);
  std::atomic<size_t> next{0}, done{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&](bool tells) {
    try {
      for (size_t i; (i = next.fetch_add(1)) < count;) {
        const uint64_t from = begin + i * kChunk;
        each_block(file, path, from, std::min(end, from + kChunk), [&](uint64_t place, auto bytes) {
          each_line_end(bytes, [&](size_t behind) {
            found[i].push_back(static_cast<uint32_t>(place - from + behind));
          });
        });
        const size_t chunks = ++done;
        if (tells) scanned(std::min(end, begin + chunks * kChunk));
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(std::min(threads, count));
  try {
    for (size_t i = 1; i < std::min(threads, count); ++i) helpers.emplace_back(work, false);
  } catch (const std::exception&) {  // no more threads may be started, or there is no memory for them
  }
  work(true);
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  return found;
}

LineStarts find_lines(int file, const std::string& path, uint64_t begin, uint64_t size, size_t threads,
                      const Scanned& scanned) {
  std::vector<std::vector<uint32_t>> found = scan_chunks(file, path, begin, size, threads, scanned);
  size_t count = 2;
  for (const auto& chunk : found) count += chunk.size();
  LineStarts starts;
  starts.reserve(count);
  starts.append(begin);
  for (size_t i = 0; i < found.size(); ++i) {
    for (const uint32_t behind : found[i]) {
      const uint64_t place = begin + i * kChunk + behind;
      if (place < size) starts.append(place);
    }
    found[i] = {};
  }
  starts.append(size);
  return starts;
}

bool is_blank(int file, const std::string& path, uint64_t begin, uint64_t end) {
  if (end - begin > kBlank) return false;
  uint8_t bytes[kBlank];
  read_at(file, path, begin, bytes, static_cast<size_t>(end - begin));
  return std::all_of(bytes, bytes + (end - begin), [](uint8_t byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
  });
}

LineStarts without_blank(int file, const std::string& path, const LineStarts& all) {
  LineStarts starts;
  starts.reserve(all.size());
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    if (!is_blank(file, path, all[i], all[i + 1])) starts.append(all[i]);
  }
  starts.append(all[all.size() - 1]);
  return starts;
}

bool is_line_end(uint8_t byte) {
  return byte == '\n' || byte == '\r';
}

// The state of a parser of records: that of Python's csv.reader, not strict, with doubled quotes. Either byte
// of "\r\n" ends a record; what lies between them is an empty line.
class RecordState {
 public:
  explicit RecordState(char delimiter) : delimiter_(static_cast<uint8_t>(delimiter)) {}

  enum class Step { content, dropped, field, record };

  Step step(uint8_t byte) {
    if (place_ == Place::quoted) {
      if (byte != '"') return Step::content;
      place_ = Place::quote;
      return Step::dropped;
    }
    if (byte == delimiter_) {
      place_ = Place::start;
      return Step::field;
    }
    if (is_line_end(byte)) {
      place_ = Place::start;
      return Step::record;
    }
    if (byte == '"' && place_ != Place::plain) {
      // The first quote of a field opens it; a quote behind a quote stands for one.
      const bool opens = place_ == Place::start;
      place_ = Place::quoted;
      return opens ? Step::dropped : Step::content;
    }
    place_ = Place::plain;
    return Step::content;
  }

 private:
  enum class Place { start, plain, quoted, quote };
  uint8_t delimiter_;
  Place place_ = Place::start;
};

LineStarts find_records(int file, const std::string& path, uint64_t begin, uint64_t size, char delimiter,
                        const Scanned& scanned) {
  LineStarts starts;
  RecordState state(delimiter);
  uint64_t start = begin;
  uint64_t told = begin;
  each_block(file, path, begin, size, [&](uint64_t place, std::span<const uint8_t> bytes) {
    if (place - told >= kChunk) {
      told = place;
      scanned(place);
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (state.step(bytes[i]) != RecordState::Step::record) continue;
      if (start < place + i) starts.append(start);
      start = place + i + 1;
    }
  });
  if (start < size) starts.append(start);
  starts.append(size);
  return starts;
}

}  // namespace

void LineStarts::append(uint64_t place) {
  while (place >> 32 > carries_.size()) carries_.push_back(low_.size());
  low_.push_back(static_cast<uint32_t>(place));
}

uint64_t LineStarts::operator[](size_t i) const {
  const auto high =
      static_cast<uint64_t>(std::upper_bound(carries_.begin(), carries_.end(), i) - carries_.begin());
  return high << 32 | low_[i];
}

LineStarts find_starts(int file, const std::string& path, uint64_t size, Split split, char delimiter,
                       size_t threads, const Scanned& scanned) {
  uint64_t begin = 0;
  if (size >= 3) {
    uint8_t mark[3];
    read_at(file, path, 0, mark, 3);
    begin = std::memcmp(mark, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
  }
  if (begin == size) {
    LineStarts none;
    none.append(size);
    return none;
  }
  if (split == Split::records) return find_records(file, path, begin, size, delimiter, scanned);
  LineStarts lines = find_lines(file, path, begin, size, threads, scanned);
  return split == Split::filled ? without_blank(file, path, lines) : lines;
}

uint64_t count_lines(int file, const std::string& path, uint64_t place, Split split) {
  uint64_t count = 0;
  bool returned = false;
  each_block(file, path, 0, place, [&](uint64_t, std::span<const uint8_t> bytes) {
    if (split != Split::records) return each_line_end(bytes, [&](size_t) { ++count; });
    for (const uint8_t byte : bytes) {
      count += byte == '\r' || (byte == '\n' && !returned);
      returned = byte == '\r';
    }
  });
  return count;
}

std::span<const uint8_t> without_end(std::span<const uint8_t> sample, Split split) {
  size_t size = sample.size();
  if (split == Split::records) return sample;
  if (split == Split::filled) {
    while (size > 0 && is_line_end(sample[size - 1])) --size;
  } else if (size > 0 && sample[size - 1] == '\n') {
    --size;
    if (size > 0 && sample[size - 1] == '\r') --size;
  }
  return sample.first(size);
}

size_t split_record(std::span<const uint8_t> record, char delimiter, std::vector<std::string>& fields) {
  RecordState state(delimiter);
  size_t count = 0;
  const auto begin_field = [&] {
    if (count == fields.size()) fields.emplace_back();
    fields[count++].clear();
  };
  begin_field();
  for (const uint8_t byte : record) {
    const RecordState::Step step = state.step(byte);
    if (step == RecordState::Step::record) break;
    if (step == RecordState::Step::field) begin_field();
    if (step == RecordState::Step::content) fields[count - 1].push_back(static_cast<char>(byte));
  }
  return count;
}

void read_at(int file, const std::string& path, uint64_t place, uint8_t* out, size_t size) {
  while (size > 0) {
    const ssize_t got = ::pread(file, out, size, static_cast<off_t>(place));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int code = errno;
      throw Error(ErrorKind::system, std::strerror(code), path, code);
    }
    if (got == 0) {
      throw Error(ErrorKind::system,
                  "the file has become shorter since it was indexed; make the dataset again", path, EIO);
    }
    out += got;
    size -= static_cast<size_t>(got);
    place += static_cast<uint64_t>(got);
  }
}

}  // namespace foreload
