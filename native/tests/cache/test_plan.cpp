// A tree of bits against a plain set; plans against the best of all schedules.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "bit_tree.hpp"
#include "check.hpp"
#include "error.hpp"
#include "plan.hpp"

using namespace foreload;

namespace {

std::mt19937 random_bits(3);

size_t below(size_t count) {
  return random_bits() % count;
}

void test_bits(size_t size) {
  BitTree tree(size);
  std::set<size_t> members;
  for (int i = 0; i < 3000; ++i) {
    const size_t position = below(size);
    if (below(2) == 0) {
      tree.insert(position);
      members.insert(position);
    } else {
      tree.erase(position);
      members.erase(position);
    }
    const size_t limit = below(size);
    const auto after = members.upper_bound(limit);
    CHECK(tree.last_until(limit) == (after == members.begin() ? BitTree::kNone : *std::prev(after)));
  }
}

// The most cost that can be saved: every set of intervals that fits at all times.
double best(const Trace& trace, int64_t budget) {
  struct Interval {
    size_t from, to;
    int64_t size;
    double cost;
  };
  std::vector<Interval> intervals;
  std::vector<int64_t> last(trace.samples, -1);
  for (size_t t = 0; t < trace.count; ++t) {
    const auto sample = static_cast<size_t>(trace.accesses[t]);
    if (last[sample] >= 0)
      intervals.push_back({static_cast<size_t>(last[sample]), t, trace.size(sample), trace.cost(sample)});
    last[sample] = static_cast<int64_t>(t);
  }
  double most = 0;
  for (uint32_t chosen = 0; chosen < (1u << intervals.size()); ++chosen) {
    double saved = 0;
    bool fits = true;
    std::vector<int64_t> load(trace.count, 0);
    for (size_t i = 0; i < intervals.size() && fits; ++i) {
      if ((chosen >> i & 1) == 0) continue;
      saved += intervals[i].cost;
      for (size_t t = intervals[i].from; t < intervals[i].to; ++t)
        fits &= (load[t] += intervals[i].size) <= budget;
    }
    if (fits) most = std::max(most, saved);
  }
  return most;
}

double saved(const Trace& trace, Policy policy, int64_t budget) {
  std::vector<uint8_t> hits(trace.count + 1), keep(trace.count + 1), retained(trace.samples + 1);
  compile(trace, policy, budget, below(2) == 0, 1, {hits.data(), keep.data(), retained.data()});
  double sum = 0;
  std::vector<int64_t> last(trace.samples, -1);
  std::vector<int64_t> held(trace.samples, 0);
  for (size_t t = 0; t < trace.count; ++t) {
    const auto sample = static_cast<size_t>(trace.accesses[t]);
    CHECK(hits[t] == (last[sample] >= 0 && keep[static_cast<size_t>(last[sample])] != 0));
    if (hits[t] != 0) sum += trace.cost(sample);
    last[sample] = static_cast<int64_t>(t);
    held[sample] = keep[t] != 0 ? trace.size(sample) : 0;
    int64_t load = 0;
    for (const int64_t size : held) load += size;
    CHECK(load <= budget || budget < 0);
  }
  return sum;
}

}  // namespace

int main() {
  for (const size_t size : {1, 63, 64, 65, 4096, 5000}) test_bits(size);

  double gap = 0;
  for (int round = 0; round < 400; ++round) {
    const size_t samples = 1 + below(6);
    std::vector<int64_t> accesses(below(16)), sizes(samples);
    std::vector<double> costs(samples);
    for (auto& access : accesses) access = static_cast<int64_t>(below(samples));
    for (auto& size : sizes) size = static_cast<int64_t>(1 + below(5));
    for (auto& cost : costs) cost = static_cast<double>(1 + below(9));
    const auto budget = static_cast<int64_t>(below(12));

    const Trace equal{accesses.data(), accesses.size(), samples};
    CHECK(saved(equal, Policy::opt, budget) == best(equal, budget));
    const Trace mixed{accesses.data(), accesses.size(), samples, sizes.data(), costs.data()};
    const double most = best(mixed, budget), reached = saved(mixed, Policy::opt, budget);
    CHECK(reached <= most && 3 * reached >= most);
    if (std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return 2 * size <= budget; })) {
      CHECK(2 * reached >= most);
    }
    gap += most > 0 ? reached / most : 1;
    for (const Policy policy : {Policy::lru, Policy::fifo, Policy::lfu, Policy::random}) {
      CHECK(saved(mixed, policy, budget) <= most);
    }
  }
  CHECK(gap / 400 > 0.97);

  const std::vector<int64_t> wrong = {0, 1, 2};
  uint8_t out[3];
  CHECK_THROWS(compile({wrong.data(), 3, 2}, Policy::opt, 1, false, 0, {out, out, out}), index);
}
