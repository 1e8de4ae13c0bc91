// Philox gives its published answers.
#include "check.hpp"
#include "random.hpp"

using foreload::philox;

int main() {
  // The known answers that Random123 publishes for philox4x32-10.
  CHECK((philox({0, 0, 0, 0}, {0, 0}) ==
         std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) ==
         std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));

  foreload::Random one({7, 3}, 11), same({7, 3}, 11), other({7, 4}, 11);
  bool differs = false;
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = one.uniform();
    CHECK(value >= 0 && value < 1);
    CHECK(value == same.uniform());
    differs |= value != other.uniform();
    sum += value;
  }
  CHECK(differs);
  CHECK(sum > 4850 && sum < 5150);
  for (int i = 0; i < 1000; ++i) CHECK(one.below(3) < 3);
}
