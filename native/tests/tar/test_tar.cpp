// Headers and names of tars, and CRC-32, against what their definitions say.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "crc.hpp"
#include "tar.hpp"

using namespace foreload;

namespace {

std::mt19937 generator(7);

std::vector<uint8_t> header(const std::string& name, uint64_t size, char type = '0') {
  std::vector<uint8_t> block(kTarBlock, 0);
  std::memcpy(block.data(), name.data(), name.size());
  std::snprintf(reinterpret_cast<char*>(block.data() + 124), 12, "%011llo",
                static_cast<unsigned long long>(size));
  block[156] = static_cast<uint8_t>(type);
  std::memcpy(block.data() + 257, "ustar\00000", 8);
  return block;
}

void seal(std::vector<uint8_t>& block) {
  std::memset(block.data() + 148, ' ', 8);
  unsigned sum = 0;
  for (const uint8_t byte : block) sum += byte;
  std::snprintf(reinterpret_cast<char*>(block.data() + 148), 8, "%06o", sum);
}

void test_headers() {
  for (const std::string& name : {std::string("0001.jpg"), std::string("a/b c.TXT"), std::string(100, 'x')}) {
    for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{70'000}, (uint64_t{1} << 33) - 1}) {
      for (const char type : {'0', '\0'}) {
        auto block = header(name, size, type);
        CHECK(!read_tar_header(block.data()));  // no sum
        seal(block);
        const auto found = read_tar_header(block.data());
        CHECK(found && found->name == name && found->size == size);
        const size_t place = generator() % kTarBlock;
        block[place] ^= static_cast<uint8_t>(1 + generator() % 255);
        // (In the field of the sum, another writing of the same number is as good.)
        const bool in_sum = place >= 148 && place < 156;
        CHECK(in_sum || !read_tar_header(block.data()));
      }
    }
  }
}

void test_what_is_not_usual() {
  for (const char type : {'1', '2', '5', '7', 'x', 'g', 'L', 'K', 'S'}) {
    auto block = header("a.txt", 5, type);
    seal(block);
    CHECK(!read_tar_header(block.data()));
  }
  for (const std::string& name :
       {std::string(), std::string("a/"), std::string("\xC3\xA9.txt"), std::string("a\n.txt")}) {
    auto block = header(name, 5);
    seal(block);
    CHECK(!read_tar_header(block.data()));
  }
  for (const char* size : {"", " ", "12 3", "-1", "0o5", "1_1", "8", "\x80\0\0\0\0\0\0\0\0\0\1"}) {
    auto block = header("a.txt", 0);
    std::memset(block.data() + 124, 0, 12);
    std::memcpy(block.data() + 124, size, std::strlen(size));
    seal(block);
    CHECK(!read_tar_header(block.data()));
  }
  for (const char* size : {"777777777777", " 5", "5 ", "  5  "}) {
    auto block = header("a.txt", 0);
    std::memset(block.data() + 124, 0, 12);
    std::memcpy(block.data() + 124, size, std::strlen(size));
    seal(block);
    const auto found = read_tar_header(block.data());
    CHECK(found && found->size == (size[0] == '7' ? (uint64_t{1} << 36) - 1 : 5));
  }
  auto block = header("a.txt", 5);
  block[345] = 'd';  // a folder before the name
  seal(block);
  CHECK(!read_tar_header(block.data()));
  const std::vector<uint8_t> zeros(kTarBlock, 0);
  CHECK(!read_tar_header(zeros.data()));
}

void test_names() {
  const auto is = [](std::string_view name, TarRole role, std::string_view key, std::string_view field) {
    const TarName found = split_tar_name(name);
    return found.role == role && found.key == key && found.field == field;
  };
  CHECK(is("train/cat.0001.JPG", TarRole::part, "train/cat", "0001.JPG"));
  CHECK(is("a.b/c.d", TarRole::part, "a.b/c", "d"));
  CHECK(is("a.", TarRole::part, "a", ""));
  CHECK(is("__meta__.json/a.b", TarRole::part, "__meta__.json/a", "b"));
  CHECK(is("a..b/c.jpg", TarRole::part, "a..b/c", "jpg"));
  for (const char* name :
       {"README", ".hidden", "train/.hidden", "a.b/c", "__meta__/a.json", "____", "__a__"}) {
    CHECK(is(name, TarRole::none, "", ""));
  }
  for (const char* name : {"/a.txt", "../a.txt", "a/../b.txt", "a/..", "..", "a.__key__", "a.__KEY__"}) {
    CHECK(is(name, TarRole::unusual, "", ""));
  }
  CHECK(tar_extent(0) == 512 && tar_extent(1) == 1024 && tar_extent(512) == 1024 && tar_extent(513) == 1536);
}

void test_sums() {
  CHECK(crc32(0, "") == 0);
  CHECK(crc32(0, "123456789") == 0xCBF43926);
  for (int i = 0; i < 200; ++i) {
    std::string text(generator() % 100, '\0');
    for (char& c : text) c = static_cast<char>(generator());
    uint32_t plain = ~0u;
    for (const char c : text) {
      plain ^= static_cast<uint8_t>(c);
      for (int bit = 0; bit < 8; ++bit) plain = plain >> 1 ^ (plain & 1 ? 0xEDB88320u : 0);
    }
    CHECK(crc32(0, text) == ~plain);
    const size_t cut = text.empty() ? 0 : generator() % text.size();
    const std::string_view view = text;
    CHECK(crc32(crc32(0, view.substr(0, cut)), view.substr(cut)) == ~plain);
  }
}

}  // namespace

int main() {
  test_headers();
  test_what_is_not_usual();
  test_names();
  test_sums();
}
