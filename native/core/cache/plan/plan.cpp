#include "plan.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "bit_tree.hpp"
#include "error.hpp"
#include "evict.hpp"

namespace foreload {

namespace {

constexpr int64_t kNever = -1;

// Time is counted in accesses, from 1; residents were last used at time 0.
template <typename Interval>
void for_each_interval(const Trace& trace, Interval&& interval) {
  std::vector<int64_t> last(trace.samples, kNever);
  if (trace.resident != nullptr) {
    for (size_t i = 0; i < trace.samples; ++i) last[i] = trace.resident[i] != 0 ? 0 : kNever;
  }
  for (size_t t = 1; t <= trace.count; ++t) {
    const auto sample = static_cast<size_t>(trace.accesses[t - 1]);
    if (last[sample] != kNever) interval(sample, static_cast<size_t>(last[sample]), t);
    last[sample] = static_cast<int64_t>(t);
  }
}

void accept(const Plan& plan, size_t sample, size_t from, size_t to, size_t count) {
  if (from == 0) {
    plan.retained[sample] = 1;
  } else {
    plan.keep[from - 1] = 1;
  }
  if (to <= count) plan.hits[to - 1] = 1;
}

// Returns the samples in the order of their last use, latest first, each with that time.
template <typename Sample>
void for_each_last_use(const Trace& trace, Sample&& use) {
  std::vector<bool> seen(trace.samples);
  for (size_t t = trace.count; t > 0; --t) {
    const auto sample = static_cast<size_t>(trace.accesses[t - 1]);
    if (!seen[sample]) use(sample, t);
    seen[sample] = true;
  }
  for (size_t i = 0; trace.resident != nullptr && i < trace.samples; ++i) {
    if (trace.resident[i] != 0 && !seen[i]) use(i, 0);
  }
}

// Schedules intervals on `places` machines: they are taken in the order of their ends, each by the machine
// that became free last before its start. That accepts as many as possible (Faigle and Nawijn, 1995), and is
// what Hawkeye's OPTgen (Jain and Lin, ISCA'16) finds by counting.
void plan_equal(const Trace& trace, size_t places, bool tail, const Plan& plan) {
  BitTree free_since(trace.count + 2);
  size_t used = 0;
  const auto schedule = [&](size_t sample, size_t from, size_t to) {
    const size_t machine = free_since.last_until(from);
    if (machine != BitTree::kNone) {
      free_since.erase(machine);
    } else if (used < places) {
      ++used;
    } else {
      return;
    }
    if (to <= trace.count) free_since.insert(to);
    accept(plan, sample, from, to, trace.count);
  };
  for_each_interval(trace, schedule);
  if (tail) {
    for_each_last_use(trace, [&](size_t sample, size_t from) { schedule(sample, from, trace.count + 1); });
  }
}

// Bytes in use between accesses: slot t lies between times t and t + 1.
class Load {
 public:
  explicit Load(size_t slots)
      : size_(std::bit_ceil(std::max<size_t>(slots, 1))), most_(2 * size_), added_(size_) {}

  void add(size_t begin, size_t end, int64_t bytes) {
    size_t left = begin + size_, right = end + size_ - 1;
    const size_t first = left, last = right;
    for (size_t l = left, r = right + 1; l < r; l /= 2, r /= 2) {
      if (l % 2 == 1) apply(l++, bytes);
      if (r % 2 == 1) apply(--r, bytes);
    }
    for (size_t node : {first, last}) {
      for (node /= 2; node > 0; node /= 2)
        most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
    }
  }

  int64_t most(size_t begin, size_t end) const {
    // Each node counts what was added below its parent; what was added above it is added on the way up.
    return most_in(1, 0, size_, begin, end);
  }

 private:
  void apply(size_t node, int64_t bytes) {
    most_[node] += bytes;
    if (node < size_) added_[node] += bytes;
  }

  int64_t most_in(size_t node, size_t low, size_t high, size_t begin, size_t end) const {
    if (begin <= low && high <= end) return most_[node];
    const size_t middle = (low + high) / 2;
    int64_t most = 0;
    if (begin < middle) most = most_in(2 * node, low, middle, begin, end);
    if (end > middle) most = std::max(most, most_in(2 * node + 1, middle, high, begin, end));
    return most + added_[node];
  }

  size_t size_;
  std::vector<int64_t> most_, added_;
};

struct Choice {
  std::vector<uint8_t> taken;  // per access that ends an interval
  double saved = 0;
};

// Local ratio over the intervals that `eligible` lets through: one sweep forward finds what each is worth
// beyond those that it would displace, one sweep back takes them while they fit. `wide` intervals exclude
// each other.
template <typename Eligible>
Choice local_ratio(const Trace& trace, int64_t budget, bool wide, Eligible&& eligible) {
  std::vector<double> paid(trace.count + 1, 0.0);
  Choice choice{std::vector<uint8_t>(trace.count, 0), 0};
  std::vector<int64_t> start(trace.count, kNever);
  size_t until = 0;
  const auto advance = [&](size_t t) {
    while (until < t) {
      ++until;
      paid[until] = paid[until - 1];
    }
  };
  for_each_interval(trace, [&](size_t sample, size_t from, size_t to) {
    advance(to);
    if (!eligible(sample)) return;
    const double share = wide ? 1.0 : static_cast<double>(trace.size(sample)) / static_cast<double>(budget);
    const double worth = trace.cost(sample) - share * (paid[to] - paid[from]);
    if (worth <= 0) return;
    start[to - 1] = static_cast<int64_t>(from);
    paid[to] += wide ? worth : worth / (1.0 - share);
  });
  std::vector<int64_t> freed(trace.count + 1, 0);  // bytes of what is taken, by its start
  int64_t load = 0;
  for (size_t t = trace.count; t > 0; --t) {
    load -= freed[t];
    if (start[t - 1] == kNever) continue;
    const auto sample = static_cast<size_t>(trace.accesses[t - 1]);
    if (load + trace.size(sample) > budget) continue;
    load += trace.size(sample);
    freed[static_cast<size_t>(start[t - 1])] += trace.size(sample);
    choice.taken[t - 1] = 1;
    choice.saved += trace.cost(sample);
  }
  return choice;
}

void plan_weighted(const Trace& trace, int64_t budget, bool tail, const Plan& plan) {
  const auto narrow = [&](size_t sample) { return trace.size(sample) <= budget / 2; };
  const auto wide = [&](size_t sample) {
    return trace.size(sample) > budget / 2 && trace.size(sample) <= budget;
  };
  Choice choice = local_ratio(trace, budget, false, narrow);
  Choice other = local_ratio(trace, budget, true, wide);
  if (other.saved > choice.saved) std::swap(choice, other);
  other = {};

  Load load(trace.count + 1);
  for_each_interval(trace, [&](size_t sample, size_t from, size_t to) {
    if (choice.taken[to - 1] == 0) return;
    load.add(from, to, trace.size(sample));
    accept(plan, sample, from, to, trace.count);
  });
  const auto fill = [&](size_t sample, size_t from, size_t to) {
    if (trace.size(sample) > budget - load.most(from, to)) return;
    load.add(from, to, trace.size(sample));
    accept(plan, sample, from, to, trace.count);
  };
  for_each_interval(trace, [&](size_t sample, size_t from, size_t to) {
    if (choice.taken[to - 1] == 0) fill(sample, from, to);
  });
  if (tail) {
    for_each_last_use(trace, [&](size_t sample, size_t from) { fill(sample, from, trace.count + 1); });
  }
}

bool all_equal(const Trace& trace) {
  for (size_t i = 1; i < trace.samples; ++i) {
    if (trace.size(i) != trace.size(0) || trace.cost(i) != trace.cost(0)) return false;
  }
  return true;
}

void check(const Trace& trace) {
  for (size_t t = 0; t < trace.count; ++t) {
    const int64_t sample = trace.accesses[t];
    if (sample < 0 || static_cast<size_t>(sample) >= trace.samples) {
      throw Error(ErrorKind::index, "access " + std::to_string(t) + " is of sample " +
                                        std::to_string(sample) + ", but there are " +
                                        std::to_string(trace.samples));
    }
  }
  for (size_t i = 0; trace.sizes != nullptr && i < trace.samples; ++i) {
    if (trace.sizes[i] < 0)
      throw Error(ErrorKind::value, "the size of sample " + std::to_string(i) + " is negative");
  }
}

}  // namespace

void compile(const Trace& trace, Policy policy, int64_t budget, bool tail, uint64_t seed, const Plan& plan) {
  check(trace);
  std::fill_n(plan.hits, trace.count, uint8_t{0});
  std::fill_n(plan.keep, trace.count, uint8_t{0});
  std::fill_n(plan.retained, trace.samples, uint8_t{0});
  if (budget <= 0 || trace.samples == 0) return;
  if (policy != Policy::opt) {
    evict(trace, policy, budget, tail, seed, plan);
  } else if (all_equal(trace)) {
    const int64_t size = trace.size(0);
    plan_equal(trace, size == 0 ? trace.samples : static_cast<size_t>(budget / size), tail, plan);
  } else {
    plan_weighted(trace, budget, tail, plan);
  }
}

}  // namespace foreload
