// Places, records and characters, against a few plain lines of code; files that change; memory that is
// shared.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "characters.hpp"
#include "check.hpp"
#include "error.hpp"
#include "lines.hpp"
#include "texts.hpp"

using namespace foreload;

namespace {

std::mt19937 generator(11);

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    char name[] = "/tmp/foreload-lines-XXXXXX";
    ::close(::mkstemp(name));
    path = name;
    write(content);
  }
  ~TemporaryFile() { ::unlink(path.c_str()); }
  void write(const std::string& content) const {
    const int file = ::open(path.c_str(), O_WRONLY | O_TRUNC);
    CHECK(::write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    ::close(file);
  }
  std::string path;
};

std::vector<std::string> read_all(TextSource& source, size_t most = SIZE_MAX) {
  std::vector<int64_t> samples(source.size());
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int64_t>(i);
  std::shuffle(samples.begin(), samples.end(), generator);
  std::vector<std::string> texts(samples.size());
  source.read(
      samples, most,
      [&](size_t position, auto text) {
        texts[static_cast<size_t>(samples[position])].assign(text.begin(), text.end());
      },
      [](size_t, const std::exception_ptr& error) { std::rethrow_exception(error); });
  return texts;
}

std::vector<std::string> lines_of(std::string text) {
  if (text.starts_with("\xEF\xBB\xBF")) text = text.substr(3);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    if (end < text.size() && !lines.back().empty() && lines.back().back() == '\r') lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

void test_places_beyond_32_bits() {
  LineStarts starts;
  std::vector<uint64_t> places;
  uint64_t place = 0;
  for (int i = 0; i < 5000; ++i) {
    places.push_back(place += generator() % 4 == 0 ? uint64_t{generator()} * 5 : generator() % 100);
    starts.append(place);
  }
  for (size_t i = 0; i < places.size(); ++i) CHECK(starts[i] == places[i]);
}

void test_lines() {
  const std::string parts[] = {"\n", "\r\n", "a", "\r", "\xC3\xA9", " ", "word"};
  for (int round = 0; round < 300; ++round) {
    std::string text = round % 5 == 0 ? "\xEF\xBB\xBF" : "";
    for (size_t i = generator() % 30; i > 0; --i) text += parts[generator() % std::size(parts)];
    const TemporaryFile file(text);
    LineFile lines(file.path, Split::lines, ',', 2);
    CHECK(read_all(lines) == lines_of(text));
    std::vector<std::string> cut = lines_of(text);
    for (std::string& line : cut) line.resize(std::min<size_t>(line.size(), 3));
    std::vector<std::string> some = read_all(lines, 3);
    for (std::string& line : some) line.resize(std::min<size_t>(line.size(), 3));
    CHECK(some == cut);
  }
}

void test_many_threads_find_the_same() {
  std::string text;
  while (text.size() < (70 << 20)) text += std::string(generator() % 5000, 'x') + "\n";
  const TemporaryFile file(text);
  LineFile one(file.path, Split::lines, ',', 1), many(file.path, Split::lines, ',', 4);
  CHECK(one.file()->starts.low() == many.file()->starts.low());
  CHECK(one.size() == lines_of(text).size());
}

void test_records() {
  const TemporaryFile file("text,label\r\n\r\n\"a \"\"b\"\",\n c\",1\n5\" disk,2\n\n\"x\"y,\"\"\nlast");
  LineFile records(file.path, Split::records, ',', 1);
  const std::vector<std::vector<std::string>> expected{
      {"text", "label"}, {"a \"b\",\n c", "1"}, {"5\" disk", "2"}, {"xy", ""}, {"last"}};
  CHECK(records.size() == expected.size());
  std::vector<std::string> fields;
  const std::vector<std::string> all = read_all(records);
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t count = split_record(bytes_of(all[i]), ',', fields);
    CHECK(
        (std::vector<std::string>(fields.begin(), fields.begin() + static_cast<long>(count)) == expected[i]));
  }
  CHECK(records.line_of(2) == 5);
  LineFile labels(records.file(), 1, Column{1}, nullptr);
  CHECK_THROWS(read_all(labels), value);  // the last record has no second field
  const TemporaryFile ragged("text,label\na,1,\nb, c,2\n");
  LineFile more(LineFile(ragged.path, Split::records, ',', 1).file(), 1, Column{1, 2}, nullptr);
  CHECK_THROWS(read_all(more), value);  // the second record has more than the header
  LineFile any(more.file(), 1, Column{1}, nullptr);
  CHECK((read_all(any) == std::vector<std::string>{"1", " c"}));
}

void test_records_end_in_any_line_end_and_quotes_in_the_file() {
  const TemporaryFile file("a,b\r\"c\rd\",e\r\r\n\nf,g\r\nh,\"i\r\n");
  LineFile records(file.path, Split::records, ',', 1);
  const std::vector<std::vector<std::string>> expected{{"a", "b"}, {"c\rd", "e"}, {"f", "g"}, {"h", "i\r\n"}};
  CHECK(records.size() == expected.size());
  std::vector<std::string> fields;
  const std::vector<std::string> all = read_all(records);
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t count = split_record(bytes_of(all[i]), ',', fields);
    CHECK(
        (std::vector<std::string>(fields.begin(), fields.begin() + static_cast<long>(count)) == expected[i]));
  }
  CHECK(records.line_of(1) == 2);
  CHECK(records.line_of(3) == 7);
}

void test_filled_lines() {
  const TemporaryFile file("\n{}\n \r\n\n[1]\n\n");
  LineFile lines(file.path, Split::filled, ',', 1);
  CHECK((read_all(lines) == std::vector<std::string>{"{}\n ", "[1]"}));
  CHECK(lines.line_of(1) == 5);
}

void test_characters() {
  const std::pair<const char*, std::vector<int64_t>> good[] = {
      {"", {}},
      {"plain ASCII text", {'p', 'l', 'a', 'i', 'n', ' ', 'A', 'S', 'C', 'I', 'I', ' ', 't', 'e', 'x', 't'}},
      {"12345678\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z",
       {'1', '2', '3', '4', '5', '6', '7', '8', 0xE9, 0x20AC, 0x1F600, 'z'}},
      {"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF", {0xD7FF, 0xE000, 0x10FFFF}}};
  for (const auto& [text, points] : good) {
    for (size_t most = 0; most <= points.size() + 2; ++most) {
      std::vector<int64_t> out(most + 1, -1);
      const size_t count = decode_utf8(bytes_of(text), most, out.data());
      CHECK(count == std::min(most, points.size()));
      CHECK(std::equal(out.begin(), out.begin() + static_cast<long>(count), points.begin()));
      CHECK(out[count] == -1);
    }
  }
  for (const char* bad : {"ab\x80", "ab\xC1\x81", "ab\xE0\x9F\xBF", "ab\xED\xA0\x80", "ab\xF0\x8F\xBF\xBF",
                          "ab\xF4\x90\x80\x80", "ab\xF5\x80\x80\x80", "ab\xE2\x82", "ab\xC3z", "ab\xFF"}) {
    int64_t out[16];
    try {
      decode_utf8(bytes_of(bad), 16, out);
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.code == 2);
    }
    CHECK(decode_utf8(bytes_of(bad), 2, out) == 2);  // what is cut off is not looked at
  }
}

void test_files_that_change() {
  const TemporaryFile file("one\ntwo\n");
  LineFile lines(file.path, Split::lines, ',', 1);
  LineFile later(lines.file(), 0, {}, nullptr);
  file.write("one\ntwo\nthree\n");
  CHECK_THROWS(read_all(lines), system);
  file.write("one");
  CHECK_THROWS(read_all(lines), system);
  CHECK_THROWS(read_all(later), system);
  ::unlink(file.path.c_str());
  CHECK_THROWS(read_all(lines), system);
  CHECK_THROWS(LineFile(file.path, Split::lines, ',', 1), system);
  CHECK_THROWS(LineFile("/tmp", Split::lines, ',', 1), system);
}

void test_a_copy_in_memory() {
  std::string text;
  while (text.size() < 300000) text += std::to_string(generator()) + "\n";
  const TemporaryFile file(text);
  for (const uint64_t budget : {uint64_t{0}, uint64_t{100000}, uint64_t{1} << 40}) {
    LineFile plain(file.path, Split::lines, ',', 1);
    auto copy = std::make_shared<SharedCopy>(text.size(), budget);
    LineFile kept(plain.file(), 0, {}, copy);
    CHECK(copy->filled() == 0);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&kept, &copy, i] { kept.load(static_cast<size_t>(i), 3); });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(copy->filled() == std::min<uint64_t>(budget, text.size()));
    CHECK(read_all(kept) == lines_of(text));
    if (copy->file() < 0) continue;
    LineFile other(plain.file(), 0, {}, std::make_shared<SharedCopy>(text.size(), budget, copy->file()));
    CHECK(other.copy()->filled() == copy->filled());
    if (budget > text.size()) ::unlink(file.path.c_str());  // it is not needed any more
    CHECK(read_all(other) == lines_of(text));
  }
}

void test_whole_files() {
  const TemporaryFile one(
      "\xEF\xBB\xBF"
      "a\nb\n"),
      two("");
  WholeFiles files({one.path, two.path});
  CHECK((read_all(files) == std::vector<std::string>{"a\nb\n", ""}));
}

}  // namespace

int main() {
  test_places_beyond_32_bits();
  test_lines();
  test_many_threads_find_the_same();
  test_records();
  test_records_end_in_any_line_end_and_quotes_in_the_file();
  test_filled_lines();
  test_characters();
  test_files_that_change();
  test_a_copy_in_memory();
  test_whole_files();
}
