#include "evict.hpp"

#include <list>
#include <map>
#include <memory>
#include <vector>

#include "random.hpp"

namespace foreload {

namespace {

// Which of the cached samples is evicted next.
class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;
  virtual void insert(uint32_t sample) = 0;
  virtual void touch(uint32_t sample) = 0;
  virtual uint32_t pop() = 0;
};

// A list over the samples, without an allocation per entry; its ends are at index `samples`.
class Fifo : public EvictionOrder {
 public:
  explicit Fifo(size_t samples)
      : end_(static_cast<uint32_t>(samples)), next_(samples + 1), previous_(samples + 1) {
    next_[end_] = previous_[end_] = end_;
  }
  void insert(uint32_t sample) override {
    next_[sample] = end_;
    previous_[sample] = previous_[end_];
    next_[previous_[end_]] = sample;
    previous_[end_] = sample;
  }
  void touch(uint32_t) override {}
  uint32_t pop() override {
    const uint32_t first = next_[end_];
    remove(first);
    return first;
  }
  void remove(uint32_t sample) {
    next_[previous_[sample]] = next_[sample];
    previous_[next_[sample]] = previous_[sample];
  }

 private:
  uint32_t end_;
  std::vector<uint32_t> next_, previous_;
};

class Lru : public Fifo {
 public:
  using Fifo::Fifo;
  void touch(uint32_t sample) override {
    remove(sample);
    insert(sample);
  }
};

// Of the samples used least often, the one that reached its number of uses first.
class Lfu : public EvictionOrder {
 public:
  explicit Lfu(size_t samples) : uses_(samples), place_(samples) {}
  void insert(uint32_t sample) override { enter(sample, 1); }
  void touch(uint32_t sample) override {
    const uint64_t uses = uses_[sample];
    leave(sample);
    enter(sample, uses + 1);
  }
  uint32_t pop() override {
    const uint32_t sample = by_uses_.begin()->second.front();
    leave(sample);
    return sample;
  }

 private:
  void enter(uint32_t sample, uint64_t uses) {
    auto& peers = by_uses_[uses];
    uses_[sample] = uses;
    place_[sample] = peers.insert(peers.end(), sample);
  }
  void leave(uint32_t sample) {
    const auto peers = by_uses_.find(uses_[sample]);
    peers->second.erase(place_[sample]);
    if (peers->second.empty()) by_uses_.erase(peers);
  }

  std::map<uint64_t, std::list<uint32_t>> by_uses_;
  std::vector<uint64_t> uses_;
  std::vector<std::list<uint32_t>::iterator> place_;
};

class RandomEviction : public EvictionOrder {
 public:
  explicit RandomEviction(uint64_t seed) : random_({seed, 0}, 0) {}
  void insert(uint32_t sample) override { cached_.push_back(sample); }
  void touch(uint32_t) override {}
  uint32_t pop() override {
    std::swap(cached_[random_.below(static_cast<uint32_t>(cached_.size()))], cached_.back());
    const uint32_t sample = cached_.back();
    cached_.pop_back();
    return sample;
  }

 private:
  Random random_;
  std::vector<uint32_t> cached_;
};

std::unique_ptr<EvictionOrder> make_order(Policy policy, size_t samples, uint64_t seed) {
  switch (policy) {
    case Policy::lru:
      return std::make_unique<Lru>(samples);
    case Policy::lfu:
      return std::make_unique<Lfu>(samples);
    case Policy::random:
      return std::make_unique<RandomEviction>(seed);
    default:
      return std::make_unique<Fifo>(samples);
  }
}

}  // namespace

void evict(const Trace& trace, Policy policy, int64_t budget, bool tail, uint64_t seed, const Plan& plan) {
  const auto order = make_order(policy, trace.samples, seed);
  std::vector<uint8_t> cached(trace.samples);
  std::vector<int64_t> last(trace.samples, 0);  // time of the last use; 0 before the trace
  int64_t used = 0;
  const auto admit = [&](uint32_t sample) {
    if (trace.size(sample) > budget) return;
    while (used + trace.size(sample) > budget) {
      const uint32_t dropped = order->pop();
      cached[dropped] = 0;
      used -= trace.size(dropped);
    }
    order->insert(sample);
    cached[sample] = 1;
    used += trace.size(sample);
  };
  const auto keep = [&](uint32_t sample) {
    if (last[sample] == 0) {
      plan.retained[sample] = 1;
    } else {
      plan.keep[last[sample] - 1] = 1;
    }
  };
  for (size_t i = 0; trace.resident != nullptr && i < trace.samples; ++i) {
    if (trace.resident[i] != 0) admit(static_cast<uint32_t>(i));
  }
  for (size_t t = 1; t <= trace.count; ++t) {
    const auto sample = static_cast<uint32_t>(trace.accesses[t - 1]);
    if (cached[sample] != 0) {
      plan.hits[t - 1] = 1;
      keep(sample);
      order->touch(sample);
    } else {
      admit(sample);
    }
    last[sample] = static_cast<int64_t>(t);
  }
  for (uint32_t i = 0; tail && i < trace.samples; ++i) {
    if (cached[i] != 0) keep(i);
  }
}

}  // namespace foreload
