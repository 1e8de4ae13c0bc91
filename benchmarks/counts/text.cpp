#include <fcntl.h>

#include <fstream>
#include <memory>
#include <random>

#include "characters.hpp"
#include "files.hpp"
#include "lines.hpp"
#include "path.hpp"
#include "pieces.hpp"
#include "texts.hpp"

namespace counts {

namespace {

using namespace foreload;

constexpr size_t kLines = 4096, kRecords = 1024;

std::string words(std::mt19937& random, size_t count) {
  static const char* const kWords[] = {"the", "of", "model's", "batch,", "reads", "42", "order", "samples."};
  std::string text;
  for (size_t i = 0; i < count; ++i) text += std::string(i == 0 ? "" : " ") + kWords[random() % 8];
  return text;
}

std::string lines() {
  std::mt19937 random(1);
  std::string text;
  for (size_t i = 0; i < kLines; ++i) text += words(random, random() % 20) + "\n";
  return text;
}

std::string record(std::mt19937& random) {
  return words(random, 2) + ",\"" + words(random, 6) + ", \"\"" + words(random, 2) + "\"\"\"," +
         std::to_string(random() % 100000) + ",," + words(random, 3);
}

std::string records() {
  std::mt19937 random(1);
  std::string text;
  for (size_t i = 0; i < kLines; ++i) text += record(random) + "\r\n";
  return text;
}

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

Pass find(const std::string& text, Split split) {
  std::ofstream("text", std::ios::binary) << text;
  const auto file = std::make_shared<Descriptor>(::open("text", O_RDONLY));
  return
      [file, split, size = text.size()] { find_starts(*file, "text", size, split, ',', 1, [](uint64_t) {}); };
}

Pass read() {
  std::ofstream("text", std::ios::binary) << lines();
  const auto file = std::make_shared<LineFile>("text", Split::lines, ',', 1);
  const auto samples = std::make_shared<std::vector<int64_t>>();
  std::mt19937 random(2);
  for (size_t i = 0; i < kRecords; ++i) samples->push_back(static_cast<int64_t>(random() % kLines));
  return [=] {
    file->read(
        *samples, SIZE_MAX, [](size_t, std::span<const uint8_t>) {},
        [](size_t, const std::exception_ptr& error) { std::rethrow_exception(error); });
  };
}

Pass split() {
  const auto all = std::make_shared<std::vector<std::string>>();
  std::mt19937 random(1);
  for (size_t i = 0; i < kRecords; ++i) all->push_back(record(random));
  const auto fields = std::make_shared<std::vector<std::string>>();
  return [=] {
    for (const std::string& one : *all) split_record(bytes_of(one), ',', *fields);
  };
}

constexpr size_t kCharacters = 1 << 14;

Pass decode() {
  // Of one to four bytes, as in a text of several scripts.
  const auto text = std::make_shared<std::string>();
  for (size_t i = 0; i < kCharacters; i += 8) *text += "abc d\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x99\x82";
  const auto out = std::make_shared<std::vector<int64_t>>(kCharacters);
  return [=] { decode_utf8(bytes_of(*text), kCharacters, out->data()); };
}

Pass encode() {
  struct Data {
    PieceTable table{{"<|endoftext|>"}, false, 1 << 12};
    std::vector<std::string> texts;
    std::vector<int64_t> ids;
    std::vector<std::string> missing;
  };
  const auto data = std::make_shared<Data>();
  std::mt19937 random(1);
  for (size_t i = 0; i < kRecords; ++i) {
    data->texts.push_back(words(random, 20));
    data->missing.clear();
    data->table.encode(data->texts.back(), nullptr, data->ids, data->missing);
    for (const std::string& piece : data->missing) data->table.add(piece, std::vector<int32_t>{1, 2});
  }
  return [data] {
    data->ids.clear();
    for (const std::string& text : data->texts) data->table.encode(text, nullptr, data->ids, data->missing);
  };
}

}  // namespace

std::vector<Path> text_paths() {
  return {{"line found", kLines, [] { return find(lines(), Split::lines); }},
          {"line found that is not blank", kLines, [] { return find(lines(), Split::filled); }},
          {"record of a table found", kLines, [] { return find(records(), Split::records); }},
          {"record of a table split into fields", kRecords, split},
          {"line read", kRecords, read},
          {"character decoded from UTF-8", kCharacters, decode},
          {"line encoded by known pieces (BPE)", kRecords, encode}};
}

}  // namespace counts
