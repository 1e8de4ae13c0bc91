// Samples come back as they went in, whatever is dropped, refilled or killed meanwhile.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "error.hpp"
#include "order.hpp"
#include "owned.hpp"
#include "store.hpp"

using namespace foreload;

namespace {

size_t size_of(size_t sample) {
  return 100 + sample * 37 % 3000;
}

void fill(uint8_t* to, size_t sample, size_t size) {
  for (size_t i = 0; i < size; ++i) to[i] = static_cast<uint8_t>(sample * 31 + i);
}

bool is_right(const SampleStore::Found& found, size_t sample) {
  if (found.size != size_of(sample) || found.form != Form::encoded) return false;
  for (size_t i = 0; i < found.size; ++i) {
    if (found.bytes[i] != static_cast<uint8_t>(sample * 31 + i)) return false;
  }
  return true;
}

// Returns whether it was a hit. If `fails`, nothing is reserved.
bool load(SampleStore& store, size_t sample, bool fails = false) {
  {
    SampleStore::Section section(store);
    const auto found = store.request(section, sample);
    if (found.outcome == SampleStore::Outcome::hit) {
      CHECK(is_right(found, sample));
      return true;
    }
    if (found.outcome == SampleStore::Outcome::miss) return false;
  }
  if (fails) {
    store.abandon(sample);
    return false;
  }
  uint8_t* const to = store.reserve(sample, size_of(sample), Form::encoded);
  if (to == nullptr) return false;
  fill(to, sample, size_of(sample));
  store.commit(sample);
  return false;
}

void test_arena() {
  std::vector<uint64_t> memory(1 << 14);
  Arena::State state;
  Arena arena(&state, reinterpret_cast<uint8_t*>(memory.data()));
  const size_t room = memory.size() * 8;
  arena.format(room);
  std::mt19937 random(1);
  std::vector<std::pair<uint64_t, size_t>> held;
  for (int round = 0; round < 20000; ++round) {
    if (held.empty() || random() % 2 == 0) {
      const size_t size = random() % 5000;
      const uint64_t block = arena.take(size);
      if (block == Arena::kNone) continue;
      std::memset(arena.bytes(block), static_cast<int>(block % 251), size);
      held.emplace_back(block, size);
    } else {
      std::swap(held[random() % held.size()], held.back());
      const auto [block, size] = held.back();
      for (size_t i = 0; i < size; ++i) CHECK(arena.bytes(block)[i] == block % 251);
      arena.release(block);
      held.pop_back();
    }
    CHECK(arena.state().used <= arena.state().size);
  }
  for (const auto& [block, size] : held) arena.release(block);
  CHECK(arena.state().used == 0);
  const uint64_t all = arena.take(room - Arena::kOverhead);
  CHECK(all == 0 && arena.take(1) == Arena::kNone);
  // Blocks of one size leave no gaps.
  arena.release(all);
  size_t count = 0;
  while (arena.take(1000) != Arena::kNone) ++count;
  CHECK(count == room / Arena::block_size(1000));
}

void test_plan_is_followed() {
  const auto store = SampleStore::create(3, 1 << 16, 6, 0);
  const int64_t accesses[] = {0, 1, 0, 2, 0, 1};
  const uint8_t keep[] = {1, 0, 1, 0, 0, 0}, retained[] = {0, 0, 0};
  for (int epoch = 0; epoch < 2; ++epoch) {
    store->follow(accesses, 6, keep, retained);
    const bool hits[] = {false, false, true, false, true, false};
    for (int t = 0; t < 6; ++t) CHECK(load(*store, static_cast<size_t>(accesses[t])) == hits[t]);
    CHECK(!store->contains(0) && store->counts().unforeseen == 0);
  }
  load(*store, 0);
  CHECK(store->counts().unforeseen == 1);
  const uint8_t members[] = {0, 1, 0};
  store->follow(members);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (size_t i = 0; i < 3; ++i) CHECK(load(*store, i) == (epoch > 0 && i == 1));
  }
}

void test_recent() {
  const auto store = SampleStore::create(10, 1 << 20, 0, 3);
  store->follow(Rule::recent);
  for (const size_t sample : {0, 1, 2, 0, 3}) load(*store, sample);
  CHECK(store->contains(0) && !store->contains(1) && store->contains(2) && store->contains(3));
}

// A plan whose bits are used up by requests that it was not made for keeps little more than there may be.
void test_most_samples_of_a_plan() {
  constexpr size_t samples = 4000, most = 100;
  const auto store = SampleStore::create(samples, 1 << 26, samples, most);
  std::vector<int64_t> accesses(samples);
  for (size_t i = 0; i < samples; ++i) accesses[i] = static_cast<int64_t>(i);
  const std::vector<uint8_t> all(samples, 1);
  store->follow(accesses.data(), samples, all.data(), all.data());
  for (size_t i = 0; i < samples; ++i) load(*store, i);
  std::vector<uint8_t> present(samples);
  store->residents(present.data());
  const auto count = static_cast<size_t>(std::count(present.begin(), present.end(), uint8_t{1}));
  CHECK(most <= count && count <= most + most / 8 + 1024);
  std::vector<int64_t> uses(samples);
  store->uses(uses.data());
  CHECK(std::count(uses.begin(), uses.end(), 1) == samples);
}

// Those that come first, as many as there may be; one that is dropped makes place for another.
void test_most() {
  const auto store = SampleStore::create(10, 1 << 20, 0, 3);
  for (size_t sample = 0; sample < 10; ++sample) load(*store, sample);
  CHECK(store->contains(0) && store->contains(1) && store->contains(2) && !store->contains(3));
  store->drop(1);
  CHECK(!load(*store, 5) && load(*store, 5) && !load(*store, 6) && !load(*store, 6));
  // What was claimed counts until it is abandoned.
  store->drop(5);
  CHECK(!load(*store, 7, true) && !load(*store, 8) && load(*store, 8) && !load(*store, 9) &&
        !load(*store, 9));
}

// A sample is kept anew in another form: it counts once, and others wait for it meanwhile.
void test_claim_present() {
  for (const Rule rule : {Rule::all, Rule::recent}) {
    const auto store = SampleStore::create(10, 1 << 20, 0, 2);
    store->follow(rule);
    load(*store, 0);
    load(*store, 1);
    {
      SampleStore::Section section(*store);
      const auto found = store->request(section, 0);
      CHECK(store->claim_present(section, 0) && !store->claim_present(section, 0) && !store->contains(0));
      CHECK(is_right(found, 0));  // until the section ends
      CHECK(!store->claim_present(section, 5));
    }
    uint8_t* const to = store->reserve(0, size_of(0), Form::encoded);
    CHECK(to != nullptr);
    {
      SampleStore::Section section(*store);
      CHECK(store->request(section, 0, false).outcome == SampleStore::Outcome::busy);
    }
    fill(to, 0, size_of(0));
    store->commit(0);
    CHECK(load(*store, 0) && load(*store, 1));
    CHECK(!load(*store, 2) && store->contains(2) == (rule == Rule::recent));
  }
}

// Samples whose numbers are far apart, of a dataset for which there is no entry each.
constexpr size_t kFar = size_t{1} << 40;
constexpr size_t kMany = size_t{1} << 50;

void test_threads(Rule rule, bool hashed) {
  constexpr size_t kSamples = 200;
  const size_t step = hashed ? kFar : 1;
  const auto store = SampleStore::create(hashed ? kMany : kSamples, 100'000, 100'000, 0, hashed);
  CHECK(store->is_hashed() == hashed);
  std::vector<int64_t> accesses;
  std::vector<uint8_t> keep, none(kSamples, 0);
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    accesses.push_back(static_cast<int64_t>(random() % kSamples));
    keep.push_back(random() % 2);
  }
  if (rule == Rule::planned) {
    store->follow(accesses.data(), accesses.size(), keep.data(), none.data());
  } else {
    store->follow(rule);
  }
  std::vector<std::thread> threads;
  for (size_t worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&, worker] {
      for (size_t i = worker; i < accesses.size(); i += 4) {
        load(*store, static_cast<size_t>(accesses[i]) * step, i % 7 == 3);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const auto counts = store->counts();
  CHECK(counts.hits + counts.misses == accesses.size() && counts.hits > 0);
  CHECK(counts.peak <= counts.room && counts.room <= 100'000);
  store->clear();
}

// Workers are killed while they fill, read and allocate; the others go on and see nothing wrong.
void test_kills(bool hashed) {
  const size_t step = hashed ? kFar : 1;
  const auto store = SampleStore::create(hashed ? kMany : 50, 40'000, 0, 0, hashed);
  store->follow(Rule::recent);
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      std::mt19937 own(static_cast<unsigned>(round));
      for (;;) load(*store, own() % 50 * step, own() % 7 == 0);
    }
    usleep(random() % 3000);
    kill(child, SIGKILL);
    for (int i = 0; i < 200; ++i) load(*store, random() % 50 * step, random() % 7 == 0);
    CHECK(waitpid(child, nullptr, 0) == child);
  }
  const auto counts = store->counts();
  CHECK(counts.peak <= counts.room && counts.hits > 0);
}

// With less room, what is over is dropped, the rest is read as before, and the memory is returned to the
// system.
void test_limit() {
  const auto store = SampleStore::create(100, 1 << 20, 0, 0);
  for (size_t i = 0; i < 100; ++i) load(*store, i);
  const auto before = store->counts();
  store->limit(before.used / 2);
  const auto after = store->counts();
  CHECK(after.room == before.used / 2 && after.used <= after.room && after.used > 0);
  size_t there = 0;
  for (size_t i = 0; i < 100; ++i) {
    const bool known = store->contains(i);
    CHECK(load(*store, i) == known);
    there += known;
  }
  CHECK(there > 0 && there < 100 && store->counts().used <= after.room);
  store->limit(0);
  CHECK(store->counts().used == 0 && !load(*store, 1) && !store->contains(1));
  store->limit(size_t{1} << 40);
  CHECK(store->counts().room == before.room && !load(*store, 1) && load(*store, 1));
}

// The same requests hit and miss, whether each sample has an entry or not, and every hit gives its own
// sample.
void test_hashed_is_the_same(Rule rule, size_t most) {
  constexpr size_t kSamples = 3000, kTimes = rounds_alone(60'000);
  const auto dense = SampleStore::create(kSamples, 400'000, 0, most);
  const auto hashed = SampleStore::create(kMany, 400'000, 0, most, true);
  std::mt19937 random(4);
  for (const auto& store : {dense, hashed}) store->follow(rule);
  for (size_t i = 0; i < kTimes; ++i) {
    const size_t sample = random() % kSamples;
    const bool fails = random() % 16 == 0;
    CHECK(load(*dense, sample, fails) == load(*hashed, sample, fails));
    CHECK(dense->contains(sample) == hashed->contains(sample));
    if (i % (kTimes / 3) == kTimes / 3 - 1) {
      for (const auto& store : {dense, hashed})
        store->limit(0), store->limit(400'000 - i * (60'000 / kTimes));
    }
  }
  const auto one = dense->counts(), other = hashed->counts();
  CHECK(one.hits == other.hits && one.misses == other.misses && one.kept == other.kept);
  CHECK(one.used == other.used && one.samples == other.samples && one.refused == other.refused);
  const uint8_t members[1] = {1};
  CHECK_THROWS(hashed->follow(members), value);
}

// Entries are used again: many more samples come and go than there are entries.
void test_entries_are_used_again() {
  constexpr size_t kTimes = rounds_alone(300'000);
  const auto store = SampleStore::create(kMany, 30'000, 0, 4, true);
  store->follow(Rule::recent);
  for (size_t i = 0; i < kTimes; ++i) {
    CHECK(!load(*store, i * 977));
    CHECK(load(*store, i * 977));
  }
  CHECK(store->counts().samples == 4 && store->counts().hits == kTimes);
}

void test_another_process() {
  const auto store = SampleStore::create(5, 1 << 16, 0, 0);
  load(*store, 3);
  CHECK(store->file() >= 0);
  const auto other = SampleStore::open(store->file());
  CHECK(load(*other, 3) && other->counts().hits == 1 && store->counts().hits == 1);
  CHECK_THROWS(SampleStore::open(-1), system);
}

}  // namespace

int main() {
  test_arena();
  test_plan_is_followed();
  test_recent();
  test_most_samples_of_a_plan();
  test_most();
  test_claim_present();
  for (const Rule rule : {Rule::planned, Rule::all, Rule::recent}) test_threads(rule, false);
  for (const Rule rule : {Rule::all, Rule::recent}) test_threads(rule, true);
  test_hashed_is_the_same(Rule::all, 0);
  test_hashed_is_the_same(Rule::recent, 0);
  test_hashed_is_the_same(Rule::recent, 30);
  test_entries_are_used_again();
  test_limit();
  test_another_process();
#ifndef __SANITIZE_THREAD__
  test_kills(false);
  test_kills(true);
#endif
  const auto store = SampleStore::create(5, 10, 0, 0);
  CHECK(!load(*store, 0) && !load(*store, 0) && store->counts().refused == 2);
}
