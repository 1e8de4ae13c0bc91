// A copy without waiting is a hit like any other, or nothing at all.
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "store.hpp"

using namespace foreload;

namespace {

constexpr size_t kSize = 300, kMost = 1000;

void put(SampleStore& store, size_t sample, size_t size) {
  uint8_t* const to = store.reserve(sample, size, Form::packed);
  CHECK(to != nullptr);
  std::memset(to, static_cast<int>(sample), size);
  store.commit(sample);
}

SampleStore::Outcome request(SampleStore& store, size_t sample) {
  SampleStore::Section section(store);
  return store.request(section, sample, false).outcome;
}

bool is_copied(SampleStore& store, size_t sample, size_t expected = kSize) {
  size_t size = 0;
  const std::unique_ptr<uint8_t[]> copy = store.copy_hit(sample, kMost, size);
  if (copy == nullptr) return false;
  CHECK(size == expected);
  for (size_t i = 0; i < size; ++i) CHECK(copy[i] == static_cast<uint8_t>(sample));
  return true;
}

}  // namespace

int main() {
  const auto created = SampleStore::create(8, 1 << 20, 3, 0);
  SampleStore& store = *created;
  store.follow(Rule::all);
  // Neither of a sample that is not there, nor of one that is being loaded.
  CHECK(!is_copied(store, 3) && !is_copied(store, 8));
  CHECK(request(store, 3) == SampleStore::Outcome::claimed);
  CHECK(!is_copied(store, 3));
  CHECK(store.counts().hits == 0 && store.counts().misses == 1);
  put(store, 3, kSize);
  CHECK(is_copied(store, 3) && is_copied(store, 3));
  CHECK(store.counts().hits == 2 && store.counts().misses == 1);
  // Nor of one that is too large, until it is requested.
  CHECK(request(store, 4) == SampleStore::Outcome::claimed);
  put(store, 4, kMost + 1);
  CHECK(!is_copied(store, 4));
  CHECK(request(store, 4) == SampleStore::Outcome::hit);
  CHECK(store.counts().hits == 3);
  // Nor while all slots of sections are taken: it does not wait for one.
  {
    std::vector<std::unique_ptr<SampleStore::Section>> sections;
    for (size_t i = 0; i < 512; ++i) sections.push_back(std::make_unique<SampleStore::Section>(store));
    CHECK(!is_copied(store, 3));
  }
  CHECK(is_copied(store, 3));
  // Nor of one that this request drops.
  const std::vector<int64_t> accesses{3, 5, 3};
  const std::vector<uint8_t> keep{1, 0, 0}, retained{0, 0, 0, 1, 0, 0, 0, 0};
  store.follow(accesses.data(), accesses.size(), keep.data(), retained.data());
  CHECK(is_copied(store, 3));
  CHECK(!is_copied(store, 3));
  CHECK(request(store, 3) == SampleStore::Outcome::hit);
  CHECK(!store.contains(3));
  // While others drop and reload it, a copy is always whole.
  store.follow(Rule::all);
  std::thread other([&] {
    for (int i = 0; i < 3'000; ++i) {
      if (request(store, 6) == SampleStore::Outcome::claimed) put(store, 6, kSize);
      if (i % 3 == 0) store.drop(6);
    }
  });
  for (int i = 0; i < 20'000; ++i) is_copied(store, 6);
  other.join();
}
