#include <array>
#include <memory>
#include <utility>

#include "text/pipeline.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace blockexport::text {
namespace {

// The expression inside the ByteLevel pre-tokenizer. Source: openai/gpt-2, src/encoder.py.
constexpr std::string_view kGpt2Words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using Cut = std::function<void(const Piece&, std::vector<Piece>&)>;

PreTokenizer each(Cut cut) {
  return [cut = std::move(cut)](std::vector<Piece> pieces) {
    std::vector<Piece> out;
    for (const Piece& piece : pieces) cut(piece, out);
    return out;
  };
}

// Matches of an expression as pieces of their own; what lies between them is kept or dropped.
Cut split(std::string_view pattern, bool keep_matches, bool keep_others) {
  auto regex = std::make_shared<const Regex>(pattern);
  return [regex, keep_matches, keep_others](const Piece& piece, std::vector<Piece>& out) {
    const std::u32string text = to_utf32(piece.text);
    const auto add = [&](std::size_t start, std::size_t end, bool keep) {
      if (keep && start < end) out.push_back({to_utf8(text.substr(start, end - start)), piece.first && start == 0});
    };
    std::size_t other = 0, steps = Regex::steps_for(text);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = regex->match(text, at, steps);
      if (end == Regex::npos || end == at) {
        ++at;
        continue;
      }
      add(other, at, keep_others);
      add(at, end, keep_matches);
      other = at = end;
    }
    add(other, text.size(), keep_others);
  };
}

PreTokenizer make_split(const Json& part) {
  only_keys(part, {"type", "pattern", "behavior", "invert"}, "pre_tokenizer");
  if (!part.at("pattern").contains("Regex")) refuse("a Split pre-tokenizer by plain string");
  const std::string pattern = part.at("pattern").at("Regex"), behavior = part.at("behavior");
  if (behavior != "Isolated" && behavior != "Removed") refuse("the Split behavior \"" + behavior + "\"");
  const bool invert = part.value("invert", false), removed = behavior == "Removed";
  return each(split(pattern, !removed || invert, !removed || !invert));
}

PreTokenizer make_byte_level(const Json& part) {
  only_keys(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, "pre_tokenizer");
  const bool prefix = part.value("add_prefix_space", true);
  const Cut words = split(part.value("use_regex", true) ? kGpt2Words : R"([\s\S]+)", true, true);
  return each([prefix, words](const Piece& piece, std::vector<Piece>& out) {
    const std::size_t start = out.size();
    const bool spaced = prefix && piece.text.rfind(' ', 0) != 0;
    words(spaced ? Piece{" " + piece.text, piece.first} : piece, out);
    for (std::size_t i = start; i < out.size(); ++i) out[i].text = byte_level_characters(out[i].text);
  });
}

PreTokenizer make_metaspace(const Json& part) {
  only_keys(part, {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}, "pre_tokenizer");
  const std::string mark = part.at("replacement"), scheme = part.value("prepend_scheme", "always");
  const bool cut = part.value("split", true);
  if (scheme != "always" && scheme != "first" && scheme != "never") refuse("the prepend_scheme \"" + scheme + "\"");
  return each([mark, scheme, cut](const Piece& piece, std::vector<Piece>& out) {
    std::string text;
    for (const char byte : piece.text) byte == ' ' ? text += mark : text += byte;
    const bool wanted = scheme == "always" || (scheme == "first" && piece.first);
    if (wanted && text.rfind(mark, 0) != 0) text.insert(0, mark);
    std::size_t start = 0;
    for (std::size_t next; cut && (next = text.find(mark, start + 1)) != std::string::npos; start = next) {
      out.push_back({text.substr(start, next - start), piece.first && start == 0});
    }
    if (start < text.size()) out.push_back({text.substr(start), piece.first && start == 0});
  });
}

}  // namespace

PreTokenizer make_pre_tokenizer(const Json& part) {
  if (part.is_null()) return [](std::vector<Piece> pieces) { return pieces; };
  const std::string type = part.value("type", "");
  if (type == "Sequence") {
    only_keys(part, {"type", "pretokenizers"}, "pre_tokenizer");
    std::vector<PreTokenizer> steps;
    for (const Json& step : part.at("pretokenizers")) steps.push_back(make_pre_tokenizer(step));
    return [steps = std::move(steps)](std::vector<Piece> pieces) {
      for (const PreTokenizer& step : steps) pieces = step(std::move(pieces));
      return pieces;
    };
  }
  if (type == "Split") return make_split(part);
  if (type == "ByteLevel") return make_byte_level(part);
  if (type == "Metaspace") return make_metaspace(part);
  if (type == "Digits") {
    only_keys(part, {"type", "individual_digits"}, "pre_tokenizer");
    return each(split(part.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", true, true));
  }
  refuse("the pre-tokenizer \"" + type + "\"");
}

namespace {

// Printable bytes stand for themselves, the others for the characters from U+0100 on. Source: openai/gpt-2.
struct ByteAlphabet {
  std::array<char32_t, 256> characters{};
  std::array<std::int16_t, 0x200> bytes{};

  ByteAlphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      characters[byte] = printable ? byte : next++;
      bytes[characters[byte]] = static_cast<std::int16_t>(byte);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace

std::string byte_level_characters(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) append_utf8(out, byte_alphabet().characters[static_cast<unsigned char>(byte)]);
  return out;
}

int byte_of_character(char32_t point) { return point < 0x200 ? byte_alphabet().bytes[point] : -1; }

}  // namespace blockexport::text
