#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blockexport::text {

/// The regular expressions of pre-tokenizers: alternation, groups, `(?i:...)`, look-ahead, classes with `\p{..}`, `\s`,
/// greedy `? * + {m,n}`. Matched by backtracking, as in Python's `tokenizers`, for as many steps as are left to it;
/// anything else is refused by name.
class Regex {
 public:
  /// Throws Error naming what is not supported in `pattern`, or is too large in it.
  explicit Regex(std::string_view pattern);

  /// The end of the match that begins at `start`, or npos. Every step is taken from `steps`; throws Error when none is left.
  std::size_t match(std::u32string_view text, std::size_t start, std::size_t& steps) const;

  /// Enough for all matches of a sound expression in `text`: an expression of a stranger may need exponentially many.
  static std::size_t steps_for(std::u32string_view text) { return 50'000 + 500 * text.size(); }

  static constexpr std::size_t npos = std::u32string_view::npos;

  /// What one character may be.
  struct Item {
    std::uint32_t categories = 0;  // bits by Category
    bool white = false;
    bool negated = false;
    char32_t first = 1, last = 0;  // a range; empty when first > last
    bool matches(char32_t point) const;
  };
  struct Set {
    std::vector<Item> items;
    bool negated = false;
    bool matches(char32_t point) const;
  };

  enum class Op { kSet, kSplit, kJump, kAhead, kNotAhead, kMatch };
  struct Instruction {
    Op op;
    std::size_t x = 0, y = 0;  // set; preferred and other branch; where to go; after the look-ahead
  };

 private:
  friend class RegexCompiler;
  std::size_t run(std::u32string_view text, std::size_t pc, std::size_t at, std::size_t& steps) const;

  std::vector<Set> sets_;
  std::vector<Instruction> program_;
};

}  // namespace blockexport::text
