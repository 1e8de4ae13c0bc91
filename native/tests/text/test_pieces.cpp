// Text is split into pieces, and several threads fill one table at once.
#include <thread>

#include "check.hpp"
#include "pieces.hpp"

using foreload::PieceTable;
using Outcome = PieceTable::Outcome;

namespace {

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    pieces.emplace_back(text.substr(0, foreload::piece_end(text)));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

void test_pieces() {
  const std::vector<std::string> expected[] = {{"it", "'s", " 42", " o", "'", "clock", ",", " they", "'ll"},
                                               {" ", " a", "\t", "b", " \t", " ", "\n"},
                                               {"''", "s", " ", " !", "x", "9", "_", "a", "   "},
                                               {"  "}};
  for (std::vector<std::string> pieces : expected) {
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    if (pieces.size() == 7) pieces = {" ", " a", "\t", "b", " \t \n"};  // at the end they stay together
    CHECK(pieces_of(text) == pieces);
  }
}

void test_a_table_that_threads_share() {
  PieceTable table({"<s>"}, true, 1 << 12), more({}, false, 64);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int32_t i = 0; i < 1000; ++i) {
        const std::string piece = " " + std::to_string(i);
        std::vector<int64_t> ids{7};
        std::vector<std::string> missing;
        if (table.encode(piece, nullptr, ids, missing) == Outcome::unknown) {
          CHECK(missing == std::vector<std::string>{piece} && ids.size() == 1);
          table.add(piece, std::vector<int32_t>{i, -i});
        }
        CHECK(table.encode(piece, nullptr, ids, missing) == Outcome::done);
        CHECK(ids[ids.size() - 2] == i && ids.back() == -i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int64_t> ids;
  std::vector<std::string> missing;
  CHECK(table.encode("1 2 x", nullptr, ids, missing) == Outcome::unknown);
  CHECK(ids.empty() && missing == std::vector<std::string>{" x"});
  more.add(" x", {});
  CHECK(table.encode("1 2 x", &more, ids, missing) == Outcome::done);
  CHECK((ids == std::vector<int64_t>{1, -1, 2, -2}));
  for (const char* foreign : {"", "1 <s>", "\xC3\xA9"}) {
    CHECK(table.encode(foreign, &more, ids, missing) == Outcome::foreign);
  }
}

void test_a_full_table_forgets_what_comes() {
  PieceTable table({}, false, 4);
  for (int32_t i = 0; i < 100; ++i) table.add("a" + std::string(static_cast<size_t>(i), 'a'), std::array{i});
  std::vector<int64_t> ids;
  std::vector<std::string> missing;
  CHECK(table.encode("aaa", nullptr, ids, missing) == Outcome::done && ids[0] == 2);
  CHECK(table.encode(std::string(90, 'a'), nullptr, ids, missing) == Outcome::unknown);
}

}  // namespace

int main() {
  test_pieces();
  test_a_table_that_threads_share();
  test_a_full_table_forgets_what_comes();
}
