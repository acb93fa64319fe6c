#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace blockexport::text {

/// General categories; the order is that of the generated table.
enum Category : std::uint8_t {
  kCn, kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl, kNo, kPc, kPd, kPs, kPe, kPi, kPf, kPo,
  kSm, kSc, kSk, kSo, kZs, kZl, kZp, kCc, kCf, kCs, kCo, kCategories
};

/// One bit per category: the set named `L`, `Lu`, `N`, ... in `\p{...}`; 0 for a name that is not known.
std::uint32_t category_set(std::string_view name);

Category category(char32_t point);
bool is_white_space(char32_t point);

/// Length of the valid UTF-8 character at the start of `bytes`; 0 when it is invalid, and -1 when it is cut off at the
/// end of `bytes` but could still be completed.
int utf8_length(std::string_view bytes);

/// Number of bytes that one U+FFFD replaces where utf8_length is not positive (the maximal part of a character,
/// Unicode 3.9, as Rust and browsers do it).
std::size_t broken_length(std::string_view bytes);

/// `bytes` with everything that is no UTF-8 replaced.
std::string valid_utf8(std::string_view bytes);

/// Code points of valid UTF-8. Throws Error naming the offset of an invalid byte.
std::u32string to_utf32(std::string_view bytes);
std::string to_utf8(std::u32string_view points);
void append_utf8(std::string& bytes, char32_t point);

/// Canonical composition (NFC).
std::u32string nfc(const std::u32string& points);

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace blockexport::text
