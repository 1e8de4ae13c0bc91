// A table of the ids of text pieces, so that byte-level BPE encodes each piece once: text is split into
// pieces that are encoded one by one, and few different pieces make up most of any text.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foreload {

// Returns where the first piece of ASCII text ends, by GPT-2's pattern (Radford et al. 2019, encoder.py):
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t piece_end(std::string_view text);

// The ids of pieces. Any number of threads may look up and add; nothing is ever removed, so there is no lock,
// which a fork might find locked. Pieces for which there is no room are not kept.
class PieceTable {
 public:
  // `reserved`: texts that the tokenizer looks for before it splits; texts that hold one are not encoded
  // here.
  PieceTable(std::vector<std::string> reserved, bool prefix_space, size_t room);
  ~PieceTable();
  PieceTable(const PieceTable&) = delete;
  PieceTable& operator=(const PieceTable&) = delete;

  enum class Outcome { done, unknown, foreign };

  // Appends the ids of a text. `unknown`: some pieces have no ids, here or in `more`, and are appended to
  // `missing`; `foreign`: the text is not for this table. Only `done` has appended to `ids`.
  Outcome encode(std::string_view text, const PieceTable* more, std::vector<int64_t>& ids,
                 std::vector<std::string>& missing) const;
  void add(std::string_view piece, std::span<const int32_t> ids);

 private:
  struct Entry;  // the ids and the piece, in one piece of memory

  const Entry* find(std::string_view piece) const;
  bool is_foreign(std::string_view text) const;

  std::vector<std::string> reserved_;
  std::array<bool, 256> begins_reserved_{};
  bool prefix_space_;
  std::vector<std::atomic<const Entry*>> slots_;
};

}  // namespace foreload
