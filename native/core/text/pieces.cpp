#include "pieces.hpp"

#include <algorithm>
#include <functional>
#include <new>

namespace foreload {

namespace {

enum Class : uint8_t { kOther, kSpace, kLetter, kDigit };

constexpr std::array<uint8_t, 128> kClasses = [] {
  std::array<uint8_t, 128> classes{};
  for (size_t c = 9; c <= 13; ++c) classes[c] = kSpace;
  classes[' '] = kSpace;
  for (size_t c = 'a'; c <= 'z'; ++c) classes[c] = classes[c - 'a' + 'A'] = kLetter;
  for (size_t c = '0'; c <= '9'; ++c) classes[c] = kDigit;
  return classes;
}();

uint8_t class_of(char c) {
  return kClasses[static_cast<uint8_t>(c)];
}

size_t run_end(std::string_view text, size_t at) {
  const uint8_t kind = class_of(text[at]);
  while (at < text.size() && class_of(text[at]) == kind) ++at;
  return at;
}

constexpr size_t kProbes = 16;

}  // namespace

size_t piece_end(std::string_view text) {
  if (text[0] == '\'') {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (text.starts_with(ending)) return ending.size();
    }
  }
  const size_t start = text[0] == ' ' ? 1 : 0;
  if (start < text.size() && class_of(text[start]) != kSpace) return run_end(text, start);
  const size_t end = run_end(text, 0);
  // The last space belongs to what follows.
  return end < text.size() && end > 1 ? end - 1 : end;
}

struct PieceTable::Entry {
  uint32_t count, size;

  std::span<const int32_t> ids() const { return {reinterpret_cast<const int32_t*>(this + 1), count}; }
  std::string_view piece() const {
    return {reinterpret_cast<const char*>(this + 1) + count * sizeof(int32_t), size};
  }

  static const Entry* make(std::string_view piece, std::span<const int32_t> ids) {
    auto* memory = static_cast<uint8_t*>(::operator new(sizeof(Entry) + ids.size_bytes() + piece.size()));
    const auto* numbers = reinterpret_cast<const uint8_t*>(ids.data());
    std::copy_n(numbers, ids.size_bytes(), memory + sizeof(Entry));
    std::copy_n(piece.data(), piece.size(), memory + sizeof(Entry) + ids.size_bytes());
    return new (memory) Entry{static_cast<uint32_t>(ids.size()), static_cast<uint32_t>(piece.size())};
  }
  static void end(const Entry* entry) { ::operator delete(const_cast<Entry*>(entry)); }
};

PieceTable::PieceTable(std::vector<std::string> reserved, bool prefix_space, size_t room)
    : reserved_(std::move(reserved)), prefix_space_(prefix_space), slots_(room) {
  for (const std::string& text : reserved_) {
    if (!text.empty()) begins_reserved_[static_cast<uint8_t>(text[0])] = true;
  }
}

PieceTable::~PieceTable() {
  for (const auto& slot : slots_) Entry::end(slot.load(std::memory_order_acquire));
}

bool PieceTable::is_foreign(std::string_view text) const {
  bool suspect = false, ascii = true;
  for (const char c : text) {
    suspect |= begins_reserved_[static_cast<uint8_t>(c)];
    ascii &= static_cast<uint8_t>(c) < 128;
  }
  if (!ascii || text.empty()) return true;
  return suspect && std::any_of(reserved_.begin(), reserved_.end(), [&](const std::string& reserved) {
           return text.find(reserved) != std::string_view::npos;
         });
}

const PieceTable::Entry* PieceTable::find(std::string_view piece) const {
  const size_t hash = std::hash<std::string_view>{}(piece);
  for (size_t probe = 0; probe < kProbes; ++probe) {
    const Entry* entry = slots_[(hash + probe) % slots_.size()].load(std::memory_order_acquire);
    if (entry == nullptr || entry->piece() == piece) return entry;
  }
  return nullptr;
}

void PieceTable::add(std::string_view piece, std::span<const int32_t> ids) {
  const Entry* entry = Entry::make(piece, ids);
  const size_t hash = std::hash<std::string_view>{}(piece);
  for (size_t probe = 0; probe < kProbes; ++probe) {
    const Entry* there = nullptr;
    auto& slot = slots_[(hash + probe) % slots_.size()];
    if (slot.compare_exchange_strong(there, entry, std::memory_order_acq_rel)) return;
    if (there->piece() == piece) break;
  }
  Entry::end(entry);
}

PieceTable::Outcome PieceTable::encode(std::string_view text, const PieceTable* more,
                                       std::vector<int64_t>& ids, std::vector<std::string>& missing) const {
  if (is_foreign(text)) return Outcome::foreign;
  std::string prefixed;
  if (prefix_space_ && text[0] != ' ') text = prefixed.append(" ").append(text);
  const size_t before = ids.size();
  bool known = true;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, piece_end(text));
    text.remove_prefix(piece.size());
    const Entry* entry = find(piece);
    if (entry == nullptr && more != nullptr) entry = more->find(piece);
    if (entry == nullptr) {
      missing.emplace_back(piece);
      known = false;
    } else {
      ids.insert(ids.end(), entry->ids().begin(), entry->ids().end());
    }
  }
  if (known) return Outcome::done;
  ids.resize(before);
  return Outcome::unknown;
}

}  // namespace foreload
