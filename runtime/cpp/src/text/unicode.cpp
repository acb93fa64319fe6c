#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "blockexport/error.h"

namespace blockexport::text {
namespace {

struct Decomposition {
  char32_t point, first, second;  // second is 0 for a single replacement
  bool composes;
};
struct Combining {
  char32_t first, last;
  std::uint8_t order;
};

#include "text/unicode_tables.inc"

constexpr std::array<std::string_view, kCategories> kNames = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

// First and last allowed second byte after a lead byte; the rest of a character is 80..BF. Unicode table 3-7.
std::pair<unsigned char, unsigned char> second_byte(unsigned char lead) {
  switch (lead) {
    case 0xE0: return {0xA0, 0xBF};
    case 0xED: return {0x80, 0x9F};
    case 0xF0: return {0x90, 0xBF};
    case 0xF4: return {0x80, 0x8F};
    default: return {0x80, 0xBF};
  }
}

int length_by_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// How many bytes at the start are a valid beginning of a character of `length` bytes.
int valid_bytes(std::string_view bytes, int length) {
  int count = 1;
  while (count < length && count < static_cast<int>(bytes.size())) {
    const auto byte = static_cast<unsigned char>(bytes[static_cast<std::size_t>(count)]);
    const auto [low, high] = count == 1 ? second_byte(static_cast<unsigned char>(bytes[0]))
                                        : std::pair<unsigned char, unsigned char>{0x80, 0xBF};
    if (byte < low || byte > high) break;
    ++count;
  }
  return count;
}

const Decomposition* decomposition(char32_t point) {
  const auto* found = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), point,
                                       [](const Decomposition& entry, char32_t value) { return entry.point < value; });
  return found != std::end(kDecompositions) && found->point == point ? found : nullptr;
}

std::uint8_t combining_class(char32_t point) {
  const auto* found = std::upper_bound(std::begin(kCombining), std::end(kCombining), point,
                                       [](char32_t value, const Combining& entry) { return value < entry.first; });
  if (found == std::begin(kCombining)) return 0;
  --found;
  return point <= found->last ? found->order : std::uint8_t{0};
}

// Hangul syllables are composed by arithmetic. Unicode 3.12.
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28, kSyllableCount = 11172;

void decompose(char32_t point, std::u32string& out) {
  if (point >= kSyllables && point < kSyllables + kSyllableCount) {
    const char32_t index = point - kSyllables;
    out += kLeads + index / (kVowelCount * kTailCount);
    out += kVowels + index % (kVowelCount * kTailCount) / kTailCount;
    if (index % kTailCount != 0) out += kTails + index % kTailCount;
    return;
  }
  const Decomposition* entry = decomposition(point);
  if (entry == nullptr) {
    out += point;
    return;
  }
  decompose(entry->first, out);
  if (entry->second != 0) decompose(entry->second, out);
}

using Pair = std::pair<char32_t, char32_t>;

char32_t compose(char32_t first, char32_t second) {
  if (first >= kLeads && first < kLeads + kLeadCount && second >= kVowels && second < kVowels + kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  }
  if (first >= kSyllables && first < kSyllables + kSyllableCount && (first - kSyllables) % kTailCount == 0 &&
      second > kTails && second < kTails + kTailCount) {
    return first + (second - kTails);
  }
  static const std::vector<std::pair<Pair, char32_t>> pairs = [] {
    std::vector<std::pair<Pair, char32_t>> made;
    for (const Decomposition& entry : kDecompositions) {
      if (entry.composes && entry.second != 0) made.push_back({{entry.first, entry.second}, entry.point});
    }
    std::sort(made.begin(), made.end());
    return made;
  }();
  const auto found = std::lower_bound(pairs.begin(), pairs.end(), std::pair{Pair{first, second}, char32_t{0}});
  return found != pairs.end() && found->first == Pair{first, second} ? found->second : 0;
}

// Marks between two characters of class 0 are put into the order of their classes.
void sort_marks(std::u32string& points) {
  for (auto start = points.begin(); start != points.end();) {
    if (combining_class(*start) == 0) {
      ++start;
      continue;
    }
    const auto end = std::find_if(start, points.end(), [](char32_t point) { return combining_class(point) == 0; });
    std::stable_sort(start, end, [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    start = end;
  }
}

}  // namespace

std::uint32_t category_set(std::string_view name) {
  std::uint32_t set = 0;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name || (name.size() == 1 && kNames[i][0] == name[0])) set |= 1U << i;
  }
  return set;
}

Category category(char32_t point) {
  const auto* next = std::upper_bound(std::begin(kCategoryRanges), std::end(kCategoryRanges), point,
                                      [](char32_t value, std::uint32_t range) { return value < range >> 8; });
  return static_cast<Category>(*std::prev(next) & 0xFF);
}

bool is_white_space(char32_t point) {
  return std::binary_search(std::begin(kWhiteSpace), std::end(kWhiteSpace), point);
}

int utf8_length(std::string_view bytes) {
  const int length = bytes.empty() ? 0 : length_by_lead(static_cast<unsigned char>(bytes[0]));
  if (length < 2) return length;
  const int valid = valid_bytes(bytes, length);
  if (valid == length) return length;
  return valid == static_cast<int>(bytes.size()) ? -1 : 0;
}

std::size_t broken_length(std::string_view bytes) {
  const int length = length_by_lead(static_cast<unsigned char>(bytes[0]));
  return length == 0 ? 1 : static_cast<std::size_t>(valid_bytes(bytes, length));
}

std::string valid_utf8(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const int length = utf8_length(bytes);
    const std::size_t used = length > 0 ? static_cast<std::size_t>(length) : broken_length(bytes);
    out += length > 0 ? bytes.substr(0, used) : kReplacement;
    bytes.remove_prefix(used);
  }
  return out;
}

std::u32string to_utf32(std::string_view bytes) {
  std::u32string out;
  out.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const int length = utf8_length(bytes.substr(at));
    if (length <= 0) {
      throw Error("the text is not valid UTF-8 at byte " + std::to_string(at) + ": convert it to UTF-8 first");
    }
    const auto lead = static_cast<unsigned char>(bytes[at]);
    auto point = static_cast<char32_t>(length == 1 ? lead : lead & (0xFF >> (length + 1)));
    for (std::size_t i = 1; i < static_cast<std::size_t>(length); ++i) {
      point = point << 6 | (static_cast<unsigned char>(bytes[at + i]) & 0x3FU);
    }
    out += point;
    at += static_cast<std::size_t>(length);
  }
  return out;
}

void append_utf8(std::string& bytes, char32_t point) {
  const auto add = [&bytes](char32_t byte) { bytes += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (point < 0x80) return add(point);
  if (point < 0x800) {
    add(0xC0 | point >> 6);
  } else if (point < 0x10000) {
    add(0xE0 | point >> 12);
    add(0x80 | (point >> 6 & 0x3F));
  } else {
    add(0xF0 | point >> 18);
    add(0x80 | (point >> 12 & 0x3F));
    add(0x80 | (point >> 6 & 0x3F));
  }
  add(0x80 | (point & 0x3F));
}

std::string to_utf8(std::u32string_view points) {
  std::string out;
  for (const char32_t point : points) append_utf8(out, point);
  return out;
}

std::u32string nfc(const std::u32string& points) {
  // Nothing below U+0300 combines or decomposes under composition.
  if (std::all_of(points.begin(), points.end(), [](char32_t point) { return point < 0x300; })) return points;
  std::u32string parts;
  for (const char32_t point : points) decompose(point, parts);
  sort_marks(parts);
  std::u32string out;
  std::size_t starter = std::u32string::npos;
  int last_class = -1;  // class of the last mark kept after the starter; -1: none
  for (const char32_t point : parts) {
    const int order = combining_class(point);
    const bool blocked = starter == std::u32string::npos || last_class >= order;
    const char32_t together = blocked ? 0 : compose(out[starter], point);
    if (together != 0) {
      out[starter] = together;
      continue;
    }
    out += point;
    if (order == 0) {
      starter = out.size() - 1;
      last_class = -1;
    } else {
      last_class = order;
    }
  }
  return out;
}

}  // namespace blockexport::text
