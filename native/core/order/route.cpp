#include "route.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace foreload {

namespace {

void check(const int64_t* positions, size_t count, const int64_t* lengths, size_t ranks) {
  uint64_t total = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (lengths[rank] < 0) throw Error(ErrorKind::value, "the length of a rank's part is negative");
    total += static_cast<uint64_t>(lengths[rank]);
  }
  if (total != count) {
    throw Error(ErrorKind::value, "the ranks' parts have " + std::to_string(total) +
                                      " samples in all, but there are " + std::to_string(count));
  }
  for (size_t i = 0; i < count; ++i) {
    if (positions[i] < 0) throw Error(ErrorKind::index, "a position is negative");
  }
}

}  // namespace

void route(const int64_t* positions, size_t count, const int64_t* lengths, size_t ranks, int64_t* order) {
  check(positions, count, lengths, ranks);
  const auto owner = [&](size_t i) { return static_cast<size_t>(positions[i]) % ranks; };
  // The samples of each owner, side by side, as (position, index).
  std::vector<size_t> begin(ranks + 1, 0);
  for (size_t i = 0; i < count; ++i) ++begin[owner(i) + 1];
  for (size_t rank = 0; rank < ranks; ++rank) begin[rank + 1] += begin[rank];
  std::vector<std::pair<int64_t, size_t>> owned(count);
  std::vector<size_t> next(begin.begin(), begin.end() - 1);
  for (size_t i = 0; i < count; ++i) owned[next[owner(i)]++] = {positions[i], i};

  std::vector<size_t> taker(count, ranks);  // the rank that loads each; `ranks`: none yet
  std::vector<size_t> missing(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto length = static_cast<size_t>(lengths[rank]);
    const size_t own = begin[rank + 1] - begin[rank], taken = std::min(own, length);
    const auto first = owned.begin() + static_cast<ptrdiff_t>(begin[rank]);
    if (taken < own)
      std::nth_element(first, first + static_cast<ptrdiff_t>(taken),
                       owned.begin() + static_cast<ptrdiff_t>(begin[rank + 1]));
    for (size_t i = 0; i < taken; ++i) taker[owned[begin[rank] + i].second] = rank;
    missing[rank] = length - taken;
  }
  size_t rank = 0;
  for (size_t i = 0; i < count; ++i) {
    if (taker[i] != ranks) continue;
    while (missing[rank] == 0) ++rank;
    --missing[rank];
    taker[i] = rank;
  }
  size_t at = 0;
  for (size_t i = 0; i < ranks; ++i) {
    next[i] = at;
    at += static_cast<size_t>(lengths[i]);
  }
  for (size_t i = 0; i < count; ++i) order[next[taker[i]]++] = static_cast<int64_t>(i);
}

}  // namespace foreload
