// Swaps keep what is loaded in all, and send samples to their owners, against a search that is plain and
// slow.
#include <algorithm>
#include <numeric>
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "random.hpp"
#include "route.hpp"

namespace {

using Numbers = std::vector<int64_t>;

Numbers plain(const Numbers& positions, const Numbers& lengths) {
  const size_t ranks = lengths.size();
  Numbers by_position(positions.size());
  std::iota(by_position.begin(), by_position.end(), 0);
  std::stable_sort(by_position.begin(), by_position.end(), [&](int64_t a, int64_t b) {
    return positions[static_cast<size_t>(a)] < positions[static_cast<size_t>(b)];
  });
  std::vector<Numbers> parts(ranks);
  Numbers left;
  for (const int64_t i : by_position) {
    const auto owner = static_cast<size_t>(positions[static_cast<size_t>(i)]) % ranks;
    const bool fits = parts[owner].size() < static_cast<size_t>(lengths[owner]);
    (fits ? parts[owner] : left).push_back(i);
  }
  std::sort(left.begin(), left.end());
  Numbers order;
  auto next = left.begin();
  for (size_t rank = 0; rank < ranks; ++rank) {
    while (parts[rank].size() < static_cast<size_t>(lengths[rank])) parts[rank].push_back(*next++);
    std::sort(parts[rank].begin(), parts[rank].end());
    order.insert(order.end(), parts[rank].begin(), parts[rank].end());
  }
  return order;
}

}  // namespace

int main() {
  foreload::Random random({1, 0}, 0);
  for (int trial = 0; trial < 2000; ++trial) {
    const size_t ranks = 1 + random.below(9);
    Numbers lengths(ranks);
    for (int64_t& length : lengths) length = random.below(7);
    const auto count = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
    Numbers positions(count), order(count);
    for (int64_t& position : positions) position = random.below(trial % 2 == 0 ? 20 : 1'000'000);
    foreload::route(positions.data(), count, lengths.data(), ranks, order.data());
    CHECK(order == plain(positions, lengths));
  }
  const int64_t positions[] = {0, -1}, lengths[] = {1, 1}, few[] = {1, 0}, negative[] = {3, -1};
  int64_t order[2];
  CHECK_THROWS(foreload::route(positions, 2, lengths, 2, order), index);
  CHECK_THROWS(foreload::route(positions, 2, few, 2, order), value);
  CHECK_THROWS(foreload::route(positions, 2, negative, 2, order), value);
  CHECK_THROWS(foreload::route(positions, 2, nullptr, 0, order), value);
}
