// Twisters are keyed by what they are named by, compared, and put back.
#include <cstring>
#include <set>
#include <vector>

#include "check.hpp"
#include "twisters.hpp"

using foreload::fill_twister;
using foreload::kTwisterWords;
using foreload::Twisters;

namespace {

std::vector<uint32_t> filled(foreload::Key key, uint64_t index, uint32_t which) {
  std::vector<uint32_t> words(kTwisterWords);
  fill_twister(key, index, which, words.data());
  return words;
}

struct Generator {
  uint32_t position = 5;
  uint32_t words[kTwisterWords] = {1, 2, 3};
  uint32_t held = 9;
};

}  // namespace

int main() {
  // Other names, other words.
  std::set<std::vector<uint32_t>> all;
  for (uint64_t seed : {0ULL, 1ULL, 1ULL << 40})
    for (uint32_t epoch : {0U, 1U})
      for (uint64_t index : {0ULL, 1ULL, ~0ULL})
        for (uint32_t which : {0U, 1U, 2U}) all.insert(filled({seed, epoch}, index, which));
  CHECK(all.size() == 3 * 2 * 3 * 3);
  CHECK(filled({7, 3}, 11, 2) == filled({7, 3}, 11, 2));

  Generator one;
  uint64_t pair = 4;
  std::vector<std::byte> keyed(sizeof one);
  const uint32_t start = 624;
  std::memcpy(keyed.data(), &start, sizeof start);
  Twisters twisters({{reinterpret_cast<std::byte*>(&one), keyed, offsetof(Generator, words)},
                     {reinterpret_cast<std::byte*>(&pair), std::vector<std::byte>(sizeof pair), -1}});
  twisters.save();
  CHECK(!twisters.changed());
  one.words[600] ^= 1;
  CHECK(twisters.changed());
  one.words[600] ^= 1;
  pair = 5;
  CHECK(twisters.changed());
  pair = 4;

  twisters.key({7, 3}, 11);
  CHECK(!twisters.changed());
  CHECK(one.position == 624 && one.held == 0 && pair == 0);
  CHECK(std::vector<uint32_t>(one.words, one.words + kTwisterWords) == filled({7, 3}, 11, 0));
  --one.position;
  CHECK(twisters.changed());
  Generator other;
  uint64_t other_pair = 8;
  const Twisters others(
      {{reinterpret_cast<std::byte*>(&other), keyed, offsetof(Generator, words)},
       {reinterpret_cast<std::byte*>(&other_pair), std::vector<std::byte>(sizeof pair), -1}});
  twisters.exchange(others);
  CHECK(one.position == 5 && one.words[1] == 2 && one.held == 9 && pair == 8);
  CHECK(other.position == 623 && other.held == 0 && other_pair == 0);
  twisters.exchange(others);
  CHECK(one.position == 623 && pair == 0 && other.position == 5 && other_pair == 8);
  twisters.restore();
  one.held = 1;
  twisters.save();
  one.held = 2;
  twisters.restore();
  CHECK(one.held == 1);
}
