#include "gather.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "error.hpp"
#include "helpers.hpp"

namespace foreload {

void check_indices(const int64_t* indices, size_t count, int64_t rows) {
  bool inside = true;
  for (size_t i = 0; i < count; ++i) inside &= indices[i] >= -rows && indices[i] < rows;
  if (inside) return;
  for (size_t i = 0; i < count; ++i) {
    if (indices[i] < -rows || indices[i] >= rows) {
      throw Error(ErrorKind::index, "index " + std::to_string(indices[i]) + " at position " +
                                        std::to_string(i) + " is out of range for " + std::to_string(rows) +
                                        " rows");
    }
  }
}

namespace {

// How many rows ahead memory is asked for, and how many bytes of each.
constexpr size_t kAhead = 8, kAsked = 512;

// A size known at compile time turns memcpy into a few moves; the call is most of the cost of a short row.
template <typename Word>
void gather_words(const void* source, int64_t rows, const int64_t* indices, size_t count, void* out) {
  const Word* from = static_cast<const Word*>(source);
  Word* to = static_cast<Word*>(out);
  for (size_t i = 0; i < count; ++i) {
    const int64_t index = indices[i];
    std::memcpy(to + i, from + (index < 0 ? index + rows : index), sizeof(Word));
  }
}

}  // namespace

void gather(const void* source, int64_t rows, size_t row_bytes, const int64_t* indices, size_t count,
            void* out) {
  switch (row_bytes) {
    case 1:
      return gather_words<uint8_t>(source, rows, indices, count, out);
    case 2:
      return gather_words<uint16_t>(source, rows, indices, count, out);
    case 4:
      return gather_words<uint32_t>(source, rows, indices, count, out);
    case 8:
      return gather_words<uint64_t>(source, rows, indices, count, out);
    default:
      break;
  }
  const char* from = static_cast<const char*>(source);
  char* to = static_cast<char*>(out);
  const auto row = [&](size_t i) {
    const int64_t index = indices[i];
    return from + static_cast<size_t>(index < 0 ? index + rows : index) * row_bytes;
  };
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      const char* ahead = row(i + kAhead);
      for (size_t line = 0; line < row_bytes && line < kAsked; line += 64) __builtin_prefetch(ahead + line);
    }
    std::memcpy(to + i * row_bytes, row(i), row_bytes);
  }
}

namespace {

// Calls copy(begin, end) for shares of `count` rows, by up to `threads` threads.
template <typename Copy>
void share_rows(size_t threads, size_t row_bytes, size_t count, const Copy& copy) {
  constexpr size_t kBytesEach = 64 << 10, kLong = 4 << 20;
  const size_t bytes = count * row_bytes;
  const size_t parts = std::max<size_t>(1, std::min(bytes / kBytesEach, count));
  share_out(parts, threads > 0 ? threads - 1 : 0, bytes >= kLong,
            [&](size_t number) { copy(count * number / parts, count * (number + 1) / parts); });
}

void copy_from(const int64_t* addresses, size_t row_bytes, size_t count, void* out) {
  char* to = static_cast<char*>(out);
  const auto row = [&](size_t i) { return reinterpret_cast<const char*>(addresses[i]); };
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      const char* ahead = row(i + kAhead);
      for (size_t line = 0; line < row_bytes && line < kAsked; line += 64) __builtin_prefetch(ahead + line);
    }
    std::memcpy(to + i * row_bytes, row(i), row_bytes);
  }
}

}  // namespace

void gather_from(size_t threads, const int64_t* addresses, size_t row_bytes, size_t count, void* out) {
  share_rows(threads, row_bytes, count, [&](size_t begin, size_t end) {
    copy_from(addresses + begin, row_bytes, end - begin, static_cast<char*>(out) + begin * row_bytes);
  });
}

void gather_by(size_t threads, const void* source, int64_t rows, size_t row_bytes, const int64_t* indices,
               size_t count, void* out) {
  share_rows(threads, row_bytes, count, [&](size_t begin, size_t end) {
    gather(source, rows, row_bytes, indices + begin, end - begin,
           static_cast<char*>(out) + begin * row_bytes);
  });
}

}  // namespace foreload
