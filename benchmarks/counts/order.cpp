#include "order.hpp"

#include <memory>
#include <random>

#include "path.hpp"
#include "route.hpp"
#include "twisters.hpp"

namespace counts {

namespace {

using foreload::Permutation;
using Numbers = std::vector<int64_t>;

constexpr size_t kCount = 1 << 14;
constexpr uint64_t kSamples = 100'000'000;

Pass permute() {
  const auto out = std::make_shared<Numbers>(kCount);
  return [out] { Permutation(kSamples, {1, 0}).fill(12345, kCount, out->data()); };
}

Pass find() {
  const auto values = std::make_shared<Numbers>(kCount), out = std::make_shared<Numbers>(kCount);
  Permutation(kSamples, {1, 0}).fill(12345, kCount, values->data());
  return [values, out] { Permutation(kSamples, {1, 0}).find(values->data(), kCount, out->data()); };
}

Pass route() {
  constexpr size_t kRanks = 64;
  const auto positions = std::make_shared<Numbers>(), order = std::make_shared<Numbers>(kCount);
  std::mt19937 random(1);
  for (size_t i = 0; i < kCount; ++i) positions->push_back(static_cast<int64_t>(random() % kSamples));
  const auto lengths = std::make_shared<Numbers>(kRanks, kCount / kRanks);
  return [=] { foreload::route(positions->data(), kCount, lengths->data(), kRanks, order->data()); };
}

Pass twist() {
  const auto words = std::make_shared<std::vector<uint32_t>>(foreload::kTwisterWords);
  return [words] {
    for (uint64_t sample = 0; sample < 64; ++sample) foreload::fill_twister({1, 0}, sample, 0, words->data());
  };
}

}  // namespace

std::vector<Path> order_paths() {
  return {{"position of a keyed permutation", kCount, permute},
          {"position of a keyed permutation found", kCount, find},
          {"sample routed between 64 ranks", kCount, route},
          {"Mersenne Twister keyed for a sample", 64, twist}};
}

}  // namespace counts
