// A plan by one rank holds for what others keep, also for what they were loading when it was made.
#include "arena.hpp"
#include "check.hpp"
#include "error.hpp"
#include "order.hpp"
#include "owned.hpp"
#include "store.hpp"

using namespace foreload;

namespace {

void keep(SampleStore& store, size_t sample) {
  CHECK(store.reserve(sample, 8, Form::packed) != nullptr);
  store.commit(sample);
}

SampleStore::Outcome request(SampleStore& store, size_t sample) {
  SampleStore::Section section(store);
  return store.request(section, sample).outcome;
}

// Returns whether it was a hit.
bool load(SampleStore& store, size_t sample) {
  const auto outcome = request(store, sample);
  if (outcome == SampleStore::Outcome::claimed) keep(store, sample);
  return outcome == SampleStore::Outcome::hit;
}

// Other ranks do not wait for the one that plans: what they claimed before takes no room that the plan's
// need.
void test_claims_before_a_plan() {
  const auto store = SampleStore::create(4, 2 * Arena::block_size(8), 0, 0);
  for (const size_t sample : {0, 1, 2, 3}) CHECK(request(*store, sample) == SampleStore::Outcome::claimed);
  CHECK(store->reserve(1, 8, Form::packed) != nullptr);
  const uint8_t members[] = {1, 0, 0, 1};
  store->follow(members);
  store->commit(1);
  keep(*store, 2);
  keep(*store, 3);
  keep(*store, 0);
  for (const size_t sample : {0, 1, 2, 3}) CHECK(store->contains(sample) == (members[sample] != 0));
  CHECK(store->counts().samples == 2);
}

// The same for a plan of accesses, which foresees what it needs itself.
void test_claims_before_a_plan_of_accesses() {
  const auto store = SampleStore::create(4, 2 * Arena::block_size(8), 4, 0);
  for (const size_t sample : {0, 1, 2}) CHECK(request(*store, sample) == SampleStore::Outcome::claimed);
  const int64_t accesses[] = {0, 3, 0, 3};
  const uint8_t planned[] = {1, 1, 0, 0}, retained[] = {0, 0, 0, 0};
  store->follow(accesses, 4, planned, retained);
  for (const size_t sample : {0, 1, 2}) keep(*store, sample);
  CHECK(store->counts().samples == 0 && store->counts().kept == 0);
  const bool hits[] = {false, false, true, true};
  for (int t = 0; t < 4; ++t) CHECK(load(*store, static_cast<size_t>(accesses[t])) == hits[t]);
  CHECK(store->counts().kept == 2 && store->counts().refused == 0);
}

// What was kept or claimed before is dropped where the router gives it to other ranks.
void test_owned_after_others(bool hashed) {
  const size_t samples = hashed ? 1'000'000 : 3000;
  const auto store = SampleStore::create(samples, 400'000, 0, 0, hashed);
  const Key key{5, 0};
  const Permutation permutation(samples, key);
  for (uint64_t position = 1; position < 100; ++position) load(*store, permutation(position));
  CHECK(request(*store, permutation(0)) == SampleStore::Outcome::claimed);
  const int64_t own[] = {1};
  store->follow(key, 4, own, 1, 50);
  keep(*store, permutation(0));
  for (uint64_t position = 0; position < 100; ++position)
    CHECK(store->contains(permutation(position)) == (position < 50 && position % 4 == 1));
  const int64_t other[] = {2};
  store->follow(key, 4, other, 1, 50);
  CHECK(store->counts().samples == 0);
}

// Those samples are kept, and no others, that a router gives to these ranks.
void test_owned(bool hashed) {
  const size_t samples = hashed ? 1'000'000 : 3000;
  const auto store = SampleStore::create(samples, 400'000, 0, 0, hashed);
  const Key key{5, 0};
  const Permutation permutation(samples, key);
  const int64_t own[] = {1, 3}, none[] = {4};
  store->follow(key, 4, own, 2, 100);
  for (uint64_t position = 0; position < 200; ++position) load(*store, permutation(position));
  size_t kept = 0;
  for (uint64_t position = 0; position < 200; ++position) {
    const bool is_kept = store->contains(permutation(position));
    CHECK(is_kept == (position < 100 && position % 2 == 1));
    CHECK(load(*store, permutation(position)) == is_kept);
    kept += is_kept ? 1 : 0;
  }
  CHECK(store->counts().samples == kept);
  const auto shared = store->file() >= 0 ? SampleStore::open(store->file()) : store;
  shared->follow(key, 4, own, 1, 50);
  for (uint64_t position = 0; position < 200; ++position) load(*store, permutation(position));
  for (uint64_t position = 0; position < 200; ++position)
    CHECK(store->contains(permutation(position)) == (position < 50 && position % 4 == 1));
  CHECK_THROWS(store->follow(key, 4, none, 1, 50), value);
  CHECK_THROWS(store->follow(key, 3, own, 1, 50), value);
  CHECK_THROWS(store->follow({6, 0}, 4, own, 1, 50), value);
  CHECK_THROWS(store->follow(key, Owned::kMostRanks + 1, own, 1, 50), value);
}

}  // namespace

int main() {
  test_claims_before_a_plan();
  test_claims_before_a_plan_of_accesses();
  test_owned(false);
  test_owned(true);
  test_owned_after_others(false);
  test_owned_after_others(true);
}
