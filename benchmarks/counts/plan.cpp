#include "plan.hpp"

#include <memory>
#include <random>

#include "path.hpp"

namespace counts {

namespace {

using namespace foreload;

constexpr size_t kSamples = 4096, kAccesses = 16384;

// With replacement; sizes and costs differ if `weighted`.
Path path(std::string name, Policy policy, bool weighted) {
  return {std::move(name), kAccesses, [=] {
            struct Data {
              std::vector<int64_t> accesses, sizes;
              std::vector<double> costs;
              std::vector<uint8_t> hits, keep, retained;
            };
            const auto data = std::make_shared<Data>();
            std::mt19937 random(1);
            for (size_t i = 0; i < kAccesses; ++i) {
              data->accesses.push_back(static_cast<int64_t>(random() % kSamples));
            }
            int64_t total = 0;
            for (size_t i = 0; i < kSamples; ++i) {
              data->sizes.push_back(weighted ? 1000 + static_cast<int64_t>(random() % 9000) : 1);
              data->costs.push_back(1 + random() % 8);
              total += data->sizes.back();
            }
            data->hits.resize(kAccesses);
            data->keep.resize(kAccesses);
            data->retained.resize(kSamples);
            return [=] {
              Trace trace{data->accesses.data(), kAccesses, kSamples};
              if (weighted) {
                trace.sizes = data->sizes.data();
                trace.costs = data->costs.data();
              }
              compile(trace, policy, total / 2, false, 1,
                      {data->hits.data(), data->keep.data(), data->retained.data()});
            };
          }};
}

}  // namespace

std::vector<Path> plan_paths() {
  return {path("access planned, opt", Policy::opt, false),
          path("access planned, opt, sizes and costs", Policy::opt, true),
          path("access planned, lru", Policy::lru, false),
          path("access planned, fifo", Policy::fifo, false),
          path("access planned, lfu", Policy::lfu, false),
          path("access planned, random", Policy::random, false)};
}

}  // namespace counts
