// A permutation holds each number once, can be begun anywhere, drawn in steps, and undone.
#include <cmath>
#include <map>
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "order.hpp"

using foreload::Permutation;

int main() {
  for (uint64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 255, 256, 257, 272, 289, 290, 1000, 4096, 4097}) {
    std::vector<int64_t> out(n);
    const Permutation permutation(n, {n, 5});
    permutation.fill(0, n, out.data());
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) {
      CHECK(out[i] >= 0 && static_cast<uint64_t>(out[i]) < n);
      CHECK(!seen[static_cast<size_t>(out[i])]);
      seen[static_cast<size_t>(out[i])] = true;
      CHECK(static_cast<uint64_t>(out[i]) == permutation(i));
      CHECK(permutation.inverse(static_cast<uint64_t>(out[i])) == i);
    }
    std::vector<int64_t> positions(n), steps(n);
    permutation.find(out.data(), n, positions.data());
    for (uint64_t i = 0; i < n; ++i) CHECK(static_cast<uint64_t>(positions[i]) == i);
    for (uint64_t stride : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{100}, n, n + 1, ~uint64_t{0}}) {
      for (uint64_t start : {uint64_t{0}, n / 2, n - 1}) {
        const uint64_t count = (n - 1 - start) / stride + 1;
        permutation.fill(start, count, steps.data(), stride);
        for (uint64_t i = 0; i < count; ++i) CHECK(steps[i] == out[start + i * stride]);
        CHECK_THROWS(permutation.fill(start, count + 1, steps.data(), stride), index);
      }
    }
  }
  // Each permutation is as likely as any other.
  for (uint64_t n : {3, 4, 7}) {
    std::map<std::vector<int64_t>, int> found;
    size_t permutations = 1;
    for (size_t i = 2; i <= n; ++i) permutations *= i;
    const size_t times = 400 * permutations;
    for (uint64_t seed = 0; seed < times; ++seed) {
      std::vector<int64_t> out(n);
      Permutation(n, {seed, 1}).fill(0, n, out.data());
      ++found[out];
    }
    CHECK(found.size() == permutations);
    double chi_square = 0;
    for (const auto& [_, count] : found) chi_square += (count - 400.0) * (count - 400.0) / 400.0;
    CHECK(chi_square <
          static_cast<double>(permutations) + 6 * std::sqrt(2.0 * static_cast<double>(permutations)));
  }
  // So is each step from one position to the next.
  for (uint64_t n : {257, 300, 1000}) {
    std::vector<double> steps(n);
    for (uint64_t seed = 0; seed < 400; ++seed) {
      std::vector<int64_t> out(n);
      Permutation(n, {seed, 2}).fill(0, n, out.data());
      for (size_t i = 1; i < n; ++i)
        ++steps[(static_cast<uint64_t>(out[i]) + n - static_cast<uint64_t>(out[i - 1])) % n];
    }
    double chi_square = 0;
    for (size_t step = 1; step < n; ++step) chi_square += (steps[step] - 400) * (steps[step] - 400) / 400;
    CHECK(steps[0] == 0);
    CHECK(chi_square < static_cast<double>(n) + 6 * std::sqrt(2.0 * static_cast<double>(n)));
  }
  const Permutation huge(uint64_t{1} << 40, {1, 0});
  CHECK(huge((uint64_t{1} << 40) - 1) < uint64_t{1} << 40);
  const Permutation most(uint64_t{1} << 62, {7, 3});
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t far = (uint64_t{1} << 62) - 1 - i * 4611686018427387;
    CHECK(huge.inverse(huge(i * 1099511627)) == i * 1099511627);
    CHECK(most.inverse(most(far)) == far);
  }
  int64_t out[4];
  const int64_t wrong[] = {3, -1};
  CHECK_THROWS(Permutation(3, {}).find(wrong, 1, out), index);
  CHECK_THROWS(Permutation(3, {}).find(wrong + 1, 1, out), index);
  CHECK_THROWS(Permutation(3, {}).fill(0, 1, out, 0), value);
  CHECK_THROWS(Permutation(0, {}), value);
  CHECK_THROWS(Permutation(3, {}).fill(1, 3, out), index);
}
