#include "text/regex.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "blockexport/error.h"
#include "text/unicode.h"

namespace blockexport::text {
namespace {

// The longest expression of a known model has about 1500 characters, and compiles to fewer instructions.
constexpr std::size_t kLongest = 4096, kDeepest = 50, kInstructions = 1 << 17;
constexpr std::size_t kUntried = 1 << 24;  // branches that wait: one for each character of a word

}  // namespace

bool Regex::Item::matches(char32_t point) const {
  const bool inside = (point >= first && point <= last) || (white && is_white_space(point)) ||
                      (categories != 0 && (categories >> category(point) & 1U) != 0);
  return inside != negated;
}

bool Regex::Set::matches(char32_t point) const {
  return std::any_of(items.begin(), items.end(), [point](const Item& item) { return item.matches(point); }) != negated;
}

/// Recursive descent that emits instructions as it reads.
class RegexCompiler {
 public:
  RegexCompiler(std::string_view pattern, Regex& out) : pattern_(to_utf32(pattern)), out_(out) {}

  void compile() {
    if (pattern_.size() > kLongest) throw Error("the tokenizer has an expression of " + std::to_string(pattern_.size()) +
                                                " characters, and " + std::to_string(kLongest) + " are the most");
    alternatives();
    if (at_ != pattern_.size()) refuse("an unmatched )");
    emit(Regex::Op::kMatch);
  }

 private:
  using Op = Regex::Op;
  using Set = Regex::Set;
  using Item = Regex::Item;

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error("the tokenizer's expression " + to_utf8(pattern_) + " has " + what + " at character " +
                std::to_string(at_) + ", which this tokenizer does not know: pass a Tokenizer of your own");
  }

  bool more() const { return at_ < pattern_.size(); }
  bool take(std::u32string_view text) {
    if (pattern_.compare(at_, text.size(), text) != 0) return false;
    at_ += text.size();
    return true;
  }
  std::size_t emit(Op op, std::size_t x = 0, std::size_t y = 0) {
    if (++emitted_ > kInstructions) refuse("too many repetitions");
    out_.program_.push_back({op, x, y});
    return out_.program_.size() - 1;
  }
  std::size_t here() const { return out_.program_.size(); }

  // This and what it calls return the least number of characters matched.
  std::size_t alternatives() {
    const std::size_t start = here();
    const std::size_t least = sequence();
    if (!take(U"|")) return least;
    // What was compiled moves one place down after a split, and jumps over the other alternatives at its end.
    insert_split(start);
    const std::size_t jump = emit(Op::kJump);
    out_.program_[start].y = here();
    const std::size_t other = alternatives();
    out_.program_[jump].x = here();
    return std::min(least, other);
  }

  void insert_split(std::size_t at) {
    const auto start = out_.program_.begin() + static_cast<std::ptrdiff_t>(at);
    std::for_each(start, out_.program_.end(), [](Regex::Instruction& moved) {
      if (moved.op == Op::kSet) return;  // its x is the number of a set
      ++moved.x;
      ++moved.y;
    });
    out_.program_.insert(start, {Op::kSplit, at + 1, 0});
  }

  std::size_t sequence() {
    std::size_t least = 0;
    while (more() && pattern_[at_] != U'|' && pattern_[at_] != U')') least += repeated();
    return least;
  }

  std::size_t repeated() {
    const std::size_t source = at_, start = here();
    const std::size_t least = atom();
    std::size_t low = 1, high = 1;
    if (!quantifier(low, high)) return least;
    if (least == 0) refuse("a repeated part that may be empty");
    const std::size_t after = at_;
    out_.program_.resize(start);
    for (std::size_t i = 0; i < low; ++i) again(source);
    if (high == kMany) {
      const std::size_t split = emit(Op::kSplit);
      out_.program_[split].x = here();
      again(source);
      emit(Op::kJump, split);
      out_.program_[split].y = here();
    } else {
      std::vector<std::size_t> splits;
      for (std::size_t i = low; i < high; ++i) {
        splits.push_back(emit(Op::kSplit));
        out_.program_[splits.back()].x = here();
        again(source);
      }
      for (const std::size_t split : splits) out_.program_[split].y = here();
    }
    at_ = after;
    return least * low;
  }
  void again(std::size_t source) {
    at_ = source;
    atom();
  }

  bool quantifier(std::size_t& low, std::size_t& high) {
    if (take(U"?")) {
      low = 0;
    } else if (take(U"*")) {
      low = 0, high = kMany;
    } else if (take(U"+")) {
      high = kMany;
    } else if (take(U"{")) {
      low = number();
      high = low;
      if (take(U",")) high = more() && pattern_[at_] != U'}' ? number() : kMany;
      if (!take(U"}") || high < low || high == 0) refuse("an unknown repetition");
    } else {
      return false;
    }
    if (more() && (pattern_[at_] == U'?' || pattern_[at_] == U'+' || pattern_[at_] == U'*')) {
      refuse("a lazy or possessive repetition");
    }
    return true;
  }
  std::size_t number() {
    std::size_t value = 0, digits = 0;
    for (; more() && pattern_[at_] >= U'0' && pattern_[at_] <= U'9' && digits < 4; ++digits) {
      value = value * 10 + (pattern_[at_++] - U'0');
    }
    if (digits == 0) refuse("an unknown repetition");
    return value;
  }

  std::size_t atom() {
    if (take(U"(?:")) return group(folded_);
    if (take(U"(?i:")) return group(true);
    if (take(U"(?!")) return look_ahead(Op::kNotAhead);
    if (take(U"(?=")) return look_ahead(Op::kAhead);
    if (take(U"(?")) refuse("an unknown kind of group");
    if (take(U"(")) return group(folded_);
    Set set = take(U"[") ? char_class() : single();
    out_.sets_.push_back(std::move(set));
    emit(Op::kSet, out_.sets_.size() - 1);
    return 1;
  }
  std::size_t group(bool folded) {
    if (++depth_ > kDeepest) refuse("too many groups inside each other");
    const bool outer = std::exchange(folded_, folded);
    const std::size_t least = alternatives();
    folded_ = outer;
    --depth_;
    if (!take(U")")) refuse("a group without its )");
    return least;
  }
  std::size_t look_ahead(Op op) {
    const std::size_t start = emit(op);
    group(folded_);
    emit(Op::kMatch);
    out_.program_[start].x = here();
    return 0;
  }

  Set single() {
    if (pattern_[at_] == U'.' || pattern_[at_] == U'^' || pattern_[at_] == U'$') refuse("a . ^ or $");
    if (std::u32string_view(U"*+?{").find(pattern_[at_]) != std::u32string_view::npos) refuse("nothing to repeat");
    Set set;
    if (pattern_[at_] == U'\\') {
      set.items.push_back(escape());
    } else {
      set.items.push_back(literal(pattern_[at_++]));
    }
    fold(set);
    return set;
  }

  Set char_class() {
    Set set;
    set.negated = take(U"^");
    while (more() && pattern_[at_] != U']') {
      if (pattern_[at_] == U'[' || take(U"&&")) refuse("a class inside a class");
      Item item = pattern_[at_] == U'\\' ? escape() : literal(pattern_[at_++]);
      if (at_ + 1 < pattern_.size() && pattern_[at_] == U'-' && pattern_[at_ + 1] != U']') {
        ++at_;
        const Item end = pattern_[at_] == U'\\' ? escape() : literal(pattern_[at_++]);
        if (item.first != item.last || end.first != end.last || end.last < item.first) refuse("an unknown range");
        item.last = end.last;
      }
      set.items.push_back(item);
    }
    if (!take(U"]") || set.items.empty()) refuse("a class without its ]");
    fold(set);
    return set;
  }

  static Item literal(char32_t point) {
    Item item;
    item.first = item.last = point;
    return item;
  }

  Item escape() {
    ++at_;
    if (!more()) refuse("a lone \\");
    const char32_t kind = pattern_[at_++];
    Item item;
    switch (kind) {
      case U's': item.white = true; return item;
      case U'S': item.white = item.negated = true; return item;
      case U'r': return literal(U'\r');
      case U'n': return literal(U'\n');
      case U't': return literal(U'\t');
      case U'p':
      case U'P': {
        const std::size_t close = pattern_.find(U'}', at_);
        if (!take(U"{") || close == std::u32string::npos) refuse("an unknown property");
        const std::string name = to_utf8(pattern_.substr(at_, close - at_));
        item.categories = category_set(name);
        if (item.categories == 0) refuse("the unknown property " + name);
        item.negated = kind == U'P';
        at_ = close + 1;
        return item;
      }
      default: break;
    }
    const bool word = kind > 0x7F || (kind >= U'0' && kind <= U'9') || (kind >= U'a' && kind <= U'z') ||
                      (kind >= U'A' && kind <= U'Z');
    if (word) refuse("the unknown escape \\" + to_utf8(std::u32string(1, kind)));
    return literal(kind);
  }

  // Under (?i:...) a letter stands for its other case, and s and k for the two more that Unicode folds onto them.
  void fold(Set& set) const {
    if (!folded_) return;
    const std::size_t count = set.items.size();
    for (std::size_t i = 0; i < count; ++i) {
      const Item item = set.items[i];
      if (item.first > item.last) refuse("a class inside (?i:");
      if (item.first != item.last || item.first > 0x7F) refuse("a range or a letter beyond ASCII inside (?i:");
      const char32_t lower = item.first | 0x20;
      if (lower < U'a' || lower > U'z') continue;
      set.items.push_back(literal(lower));
      set.items.push_back(literal(lower - 0x20));
      if (lower == U's') set.items.push_back(literal(0x17F));
      if (lower == U'k') set.items.push_back(literal(0x212A));
    }
  }

  static constexpr std::size_t kMany = static_cast<std::size_t>(-1);
  std::u32string pattern_;
  Regex& out_;
  std::size_t at_ = 0, depth_ = 0;
  std::size_t emitted_ = 0;  // what a repetition compiles again included
  bool folded_ = false;
};

Regex::Regex(std::string_view pattern) { RegexCompiler(pattern, *this).compile(); }

std::size_t Regex::match(std::u32string_view text, std::size_t start, std::size_t& steps) const {
  return run(text, 0, start, steps);
}

std::size_t Regex::run(std::u32string_view text, std::size_t pc, std::size_t at, std::size_t& steps) const {
  std::vector<std::pair<std::size_t, std::size_t>> untried;
  while (true) {
    if (steps-- == 0 || untried.size() > kUntried) {
      throw Error("the tokenizer's expression takes too long to match this text: pass a Tokenizer of your own");
    }
    const Instruction& now = program_[pc];
    bool failed = false;
    switch (now.op) {
      case Op::kSet:
        failed = at >= text.size() || !sets_[now.x].matches(text[at]);
        ++pc, ++at;
        break;
      case Op::kSplit:
        untried.emplace_back(now.y, at);
        pc = now.x;
        break;
      case Op::kJump: pc = now.x; break;
      case Op::kAhead:
      case Op::kNotAhead:
        failed = (run(text, pc + 1, at, steps) != npos) != (now.op == Op::kAhead);
        pc = now.x;
        break;
      case Op::kMatch: return at;
    }
    if (!failed) continue;
    if (untried.empty()) return npos;
    std::tie(pc, at) = untried.back();
    untried.pop_back();
  }
}

}  // namespace blockexport::text
