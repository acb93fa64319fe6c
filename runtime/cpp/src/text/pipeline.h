#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace blockexport::text {

using Json = nlohmann::json;

/// Refuses keys of `part` that are not in `known`, so that nothing in a file is skipped unseen.
void only_keys(const Json& part, std::initializer_list<std::string_view> known, std::string_view where);
[[noreturn]] void refuse(const std::string& what);

/// A step from text to text, before it is cut into words.
using Normalizer = std::function<std::string(std::string)>;
Normalizer make_normalizer(const Json& part);
/// Refuses a tokenizer whose steps could make a text very much longer, as forty that double it would.
void require_bounded(const Json& tokenizer);

/// A piece of text on its way to the model; `first` says that it begins where the whole text begins.
struct Piece {
  std::string text;
  bool first = false;
};
using PreTokenizer = std::function<std::vector<Piece>(std::vector<Piece>)>;
PreTokenizer make_pre_tokenizer(const Json& part);

/// The GPT-2 alphabet: every byte as one printable character, and back (-1 for a character outside of it).
std::string byte_level_characters(std::string_view bytes);
int byte_of_character(char32_t point);

/// The ids put around a text: the post-processor of tokenizer.json. A chat template is another thing, see BundleText.
struct Template {
  std::vector<std::int64_t> before, after;
};
Template make_template(const Json& part);

/// Bytes after a token, and how the bytes of several become text.
struct TokenBytes {
  enum class Kind { kByteLevel, kFallback, kMetaspace };
  Kind kind = Kind::kByteLevel;
  bool strip_first_space = false;
  std::string space = "\xE2\x96\x81";  // what stands for a space outside byte-level vocabularies

  /// The bytes of one token. `single` is set for a token that is one raw byte (`<0x0A>`).
  std::string bytes(std::string_view token, bool& single) const;
};
TokenBytes make_token_bytes(const Json& part);

/// Byte-pair encoding of one word.
class Bpe {
 public:
  explicit Bpe(const Json& model);
  void encode(std::string_view word, std::vector<std::int64_t>& ids) const;
  std::int64_t id(std::string_view token) const;  // -1 when absent
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct Merge {
    std::uint32_t rank, id;
  };
  struct Symbol {
    std::uint32_t id;
    std::int32_t previous, next;
    bool removed = false;
  };
  void split(std::string_view word, std::vector<Symbol>& symbols) const;
  void merge(std::vector<Symbol>& symbols) const;
  void read_merges(const Json& merges);

  std::unordered_map<std::string, std::uint32_t> ids_;
  std::vector<std::string> tokens_;  // empty where no token has the id
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::int64_t unknown_ = -1;
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
};

/// Tokens that are found in the text itself, before anything else looks at it.
class AddedTokens {
 public:
  AddedTokens(const Json& list, const Normalizer& normalizer);

  struct Part {
    std::string_view text;
    std::int64_t id = -1;  // of an added token, else -1: plain text
  };
  /// Cuts `text` at the added tokens, those of normalized text or the others.
  std::vector<Part> cut(std::string_view text, bool normalized) const;

  bool special(std::int64_t id) const;
  const std::string* content(std::int64_t id) const;
  std::int64_t id(std::string_view content) const;

 private:
  struct Token {
    std::string content, pattern;
    std::int64_t id;
    bool special, left, right;
  };
  using Index = std::unordered_map<char, std::vector<std::size_t>>;  // by first byte, longest first
  const Token* longest_at(std::string_view text, std::size_t at, const Index& index) const;

  std::vector<Token> tokens_;
  std::unordered_map<std::int64_t, std::size_t> by_id_;
  Index plain_, normalized_;
};

}  // namespace blockexport::text
