// A permutation holds each number once, and can be begun anywhere.
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "order.hpp"

using foreload::Permutation;

int main() {
  for (uint64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4096, 4097}) {
    std::vector<int64_t> out(n);
    const Permutation permutation(n, {n, 5});
    permutation.fill(0, n, out.data());
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) {
      CHECK(out[i] >= 0 && static_cast<uint64_t>(out[i]) < n);
      CHECK(!seen[static_cast<size_t>(out[i])]);
      seen[static_cast<size_t>(out[i])] = true;
      CHECK(static_cast<uint64_t>(out[i]) == permutation(i));
    }
  }
  const Permutation huge(uint64_t{1} << 40, {1, 0});
  CHECK(huge((uint64_t{1} << 40) - 1) < uint64_t{1} << 40);
  int64_t out[4];
  CHECK_THROWS(Permutation(0, {}), value);
  CHECK_THROWS(Permutation(3, {}).fill(1, 3, out), index);
}
