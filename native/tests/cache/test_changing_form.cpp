// Those who request a sample that others keep anew get one form of it or another, never the bytes of one with
// the size of another.
#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "store.hpp"

using namespace foreload;

namespace {

struct Kind {
  Form form;
  size_t size;
  uint8_t value;
};
constexpr Kind kKinds[] = {{Form::encoded, 100, 1}, {Form::planes, 3000, 2}};

void keep(SampleStore& store, const Kind& kind) {
  uint8_t* const to = store.reserve(0, kind.size, kind.form);
  CHECK(to != nullptr);
  std::memset(to, kind.value, kind.size);
  store.commit(0);
}

bool is_one(const SampleStore::Found& found, const Kind& kind) {
  return found.outcome == SampleStore::Outcome::hit && found.form == kind.form && found.size == kind.size &&
         found.bytes[0] == kind.value && found.bytes[kind.size - 1] == kind.value;
}

// Requests the sample, and keeps it in the other form unless another thread does.
void change(SampleStore& store) {
  bool is_first = false;
  {
    SampleStore::Section section(store);
    const auto found = store.request(section, 0);
    is_first = found.form == kKinds[0].form;
    CHECK(is_one(found, kKinds[is_first ? 0 : 1]));
    if (!store.claim_present(section, 0)) return;
  }
  keep(store, kKinds[is_first ? 1 : 0]);
}

void test_threads() {
  constexpr int kThreads = 6, kRounds = 20000;
  // Room for all that is kept at once: a thread that waits for a core may hold up what others have dropped.
  const auto store = SampleStore::create(1, size_t{kThreads} * kRounds * 2048, 0, 2);
  store->follow(Rule::all);
  {
    SampleStore::Section section(*store);
    CHECK(store->request(section, 0).outcome == SampleStore::Outcome::claimed);
  }
  keep(*store, kKinds[0]);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < kThreads; ++worker) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) change(*store);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(store->counts().samples == 1);
}

}  // namespace

int main() {
  test_threads();
  return 0;
}
