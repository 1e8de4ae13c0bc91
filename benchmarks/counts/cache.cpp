#include <fcntl.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>

#include "error.hpp"
#include "files.hpp"
#include "path.hpp"
#include "plan.hpp"
#include "spill.hpp"
#include "store.hpp"

namespace counts {

namespace {

using namespace foreload;

constexpr size_t kSamples = 256, kSize = 1000;
using Sample = std::array<uint8_t, kSize>;

// As a batch takes a sample: copied from the cache, or made and put there if it is to be kept.
void load(SampleStore& store, size_t sample, Sample& out) {
  {
    SampleStore::Section section(store);
    const auto found = store.request(section, sample);
    if (found.outcome == SampleStore::Outcome::hit) {
      std::memcpy(out.data(), found.bytes, found.size);
      return;
    }
    if (found.outcome != SampleStore::Outcome::claimed) return;
  }
  uint8_t* const to = store.reserve(sample, kSize, Form::packed);
  if (to == nullptr) return;
  std::memcpy(to, out.data(), kSize);
  store.commit(sample);
}

// Each sample in turn, by a rule.
Pass by_rule(Rule rule, size_t most) {
  const auto store = std::shared_ptr(SampleStore::create(kSamples, size_t{1} << 20, 0, most));
  store->follow(rule);
  const auto out = std::make_shared<Sample>();
  return [=] {
    for (size_t sample = 0; sample < kSamples; ++sample) load(*store, sample, *out);
  };
}

constexpr size_t kAccesses = 16 * kSamples;

Pass by_plan() {
  struct Data {
    std::shared_ptr<SampleStore> store = SampleStore::create(kSamples, size_t{1} << 20, kAccesses, 0);
    std::vector<int64_t> accesses;
    std::vector<uint8_t> hits = std::vector<uint8_t>(kAccesses), keep = hits;
    std::vector<uint8_t> retained = std::vector<uint8_t>(kSamples);
    Sample out{};
  };
  const auto data = std::make_shared<Data>();
  std::mt19937 random(1);
  for (size_t i = 0; i < kAccesses; ++i) data->accesses.push_back(static_cast<int64_t>(random() % kSamples));
  compile({data->accesses.data(), kAccesses, kSamples}, Policy::opt, kSamples / 2, false, 1,
          {data->hits.data(), data->keep.data(), data->retained.data()});
  return [data] {
    data->store->follow(data->accesses.data(), kAccesses, data->keep.data(), data->retained.data());
    for (const int64_t sample : data->accesses) load(*data->store, static_cast<size_t>(sample), data->out);
  };
}

constexpr size_t kRecords = 64;

struct Spilled {
  // Room for several passes that write, because a record that is there is not written again.
  std::vector<std::atomic<uint64_t>> places = std::vector<std::atomic<uint64_t>>(4 * kRecords);
  Spill::Counts counts;
  Descriptor folder{::open(".", O_RDONLY | O_DIRECTORY)};
  Spill spill{folder, Blake2::Key{1}, places.data(), places.size(), &counts};
  std::vector<uint8_t> bytes = std::vector<uint8_t>(8192, 7), buffer;
  size_t next = 0;

  void write_all() {
    const std::span<const uint8_t> part = bytes;
    for (size_t record = 0; record < kRecords; ++record) {
      if (!spill.write(next++, 0, std::span(&part, 1))) throw Error(ErrorKind::system, "nothing was spilled");
    }
  }
  void read_all() {
    size_t size = 0;
    uint32_t form = 0;
    for (size_t record = 0; record < kRecords; ++record) {
      if (!spill.read(record, buffer, size, form)) throw Error(ErrorKind::system, "nothing was read");
    }
  }
};

Pass write_records() {
  const auto data = std::make_shared<Spilled>();
  return [data] { data->write_all(); };
}

Pass read_records() {
  const auto data = std::make_shared<Spilled>();
  data->write_all();
  return [data] { data->read_all(); };
}

}  // namespace

std::vector<Path> cache_paths() {
  return {
      {"sample of 1000 bytes from the cache", kSamples, [] { return by_rule(Rule::all, 0); }},
      {"sample cached, another evicted (lru)", kSamples, [] { return by_rule(Rule::recent, kSamples / 2); }},
      {"sample cached or not, by a plan", kAccesses, by_plan},
      {"record of 8 KiB spilled to disk", kRecords, write_records},
      {"record of 8 KiB read from the spill", kRecords, read_records}};
}

}  // namespace counts
