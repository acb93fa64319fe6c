#include <fstream>
#include <utility>

#include "blockexport/error.h"
#include "blockexport/tokenizer.h"
#include "text/pipeline.h"
#include "text/unicode.h"

namespace blockexport {
namespace {

using text::AddedTokens;
using text::Bpe;
using text::Json;
using text::Piece;
using text::TokenBytes;

constexpr int kDeepest = 64;  // that of known models is 7

class JsonTokenizer final : public Tokenizer {
 public:
  explicit JsonTokenizer(const Json& file)
      : normalizer_(text::make_normalizer(file.at("normalizer"))),
        pre_tokenizer_(text::make_pre_tokenizer(file.at("pre_tokenizer"))),
        template_(text::make_template(file.at("post_processor"))),
        token_bytes_(text::make_token_bytes(file.at("decoder"))),
        added_(file.at("added_tokens"), normalizer_),
        bpe_(file.at("model")) {
    text::require_bounded(file);
    text::only_keys(file,
                    {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"},
                    "top level");
    for (const char* key : {"truncation", "padding"}) {
      if (file.contains(key) && !file.at(key).is_null()) text::refuse(key);
    }
  }

  std::vector<std::int64_t> encode(std::string_view given, bool add_special_tokens) const override {
    text::to_utf32(given);  // throws where it is no UTF-8
    std::vector<std::int64_t> ids;
    if (add_special_tokens) ids = template_.before;
    for (const AddedTokens::Part& part : added_.cut(given, false)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        encode_plain(std::string(part.text), part.text.data() == given.data(), ids);
      }
    }
    if (add_special_tokens) ids.insert(ids.end(), template_.after.begin(), template_.after.end());
    return ids;
  }

  std::string decode(const std::vector<std::int64_t>& ids, bool skip_special_tokens) const override {
    std::string out, run;
    bool first = true;
    for (const std::int64_t id : ids) {
      const std::string* token = token_of(id);
      if (token == nullptr || (skip_special_tokens && added_.special(id))) continue;
      bool single = false;
      const std::string bytes = token_bytes_.bytes(*token, single);
      if (token_bytes_.kind == TokenBytes::Kind::kByteLevel || single) {
        run += bytes;
      } else {
        end_run(run, out);
        const bool drop = token_bytes_.kind == TokenBytes::Kind::kMetaspace && first && token_bytes_.strip_first_space;
        out += drop ? bytes.substr(bytes.rfind(' ', 0) == 0 ? 1 : 0) : bytes;
      }
      first = false;
    }
    end_run(run, out);
    const bool strip = token_bytes_.kind == TokenBytes::Kind::kFallback && token_bytes_.strip_first_space;
    if (strip && out.rfind(' ', 0) == 0) out.erase(0, 1);
    return out;
  }

  std::unique_ptr<TextStream> stream(bool continues) const override;

  std::int64_t token_to_id(std::string_view token) const override {
    const std::int64_t added = added_.id(token);
    return added >= 0 ? added : bpe_.id(token);
  }

  /// The bytes `id` adds to generated text; special tokens add none.
  std::string bytes_of(std::int64_t id) const {
    const std::string* token = token_of(id);
    if (token == nullptr || added_.special(id)) return {};
    bool single = false;
    return token_bytes_.bytes(*token, single);
  }
  bool strips_first_space() const { return token_bytes_.strip_first_space; }

 private:
  void encode_plain(std::string plain, bool first, std::vector<std::int64_t>& ids) const {
    const std::string normalized = normalizer_(std::move(plain));
    for (const AddedTokens::Part& part : added_.cut(normalized, true)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      const bool begins = first && part.text.data() == normalized.data();
      for (const Piece& piece : pre_tokenizer_({{std::string(part.text), begins}})) bpe_.encode(piece.text, ids);
    }
  }

  const std::string* token_of(std::int64_t id) const {
    if (const std::string* added = added_.content(id)) return added;
    const auto& tokens = bpe_.tokens();
    const bool known = id >= 0 && static_cast<std::size_t>(id) < tokens.size();
    return known && !tokens[static_cast<std::size_t>(id)].empty() ? &tokens[static_cast<std::size_t>(id)] : nullptr;
  }

  // Bytes that ended. A run of byte tokens that is no UTF-8 becomes one U+FFFD per byte, as tokenizers has it.
  void end_run(std::string& run, std::string& out) const {
    std::string_view left = run;
    while (text::utf8_length(left) > 0) left.remove_prefix(static_cast<std::size_t>(text::utf8_length(left)));
    if (left.empty() || token_bytes_.kind == TokenBytes::Kind::kByteLevel) {
      out += text::valid_utf8(run);
    } else {
      for (std::size_t i = 0; i < run.size(); ++i) out += text::kReplacement;
    }
    run.clear();
  }

  text::Normalizer normalizer_;
  text::PreTokenizer pre_tokenizer_;
  text::Template template_;
  TokenBytes token_bytes_;
  AddedTokens added_;
  Bpe bpe_;
};

class JsonTextStream final : public TextStream {
 public:
  JsonTextStream(const JsonTokenizer& tokenizer, bool continues)
      : tokenizer_(tokenizer), strip_(!continues && tokenizer.strips_first_space()) {}

  std::string next(std::int64_t id) override {
    std::string bytes = tokenizer_.bytes_of(id);
    if (strip_ && !bytes.empty()) {
      if (bytes[0] == ' ') bytes.erase(0, 1);
      strip_ = false;
    }
    pending_ += bytes;
    std::string out;
    std::string_view left = pending_;
    while (!left.empty()) {
      const int length = text::utf8_length(left);
      if (length < 0) break;  // may still be completed
      const std::size_t used = length > 0 ? static_cast<std::size_t>(length) : text::broken_length(left);
      out += length > 0 ? left.substr(0, used) : text::kReplacement;
      left.remove_prefix(used);
    }
    pending_.erase(0, pending_.size() - left.size());
    return out;
  }

  std::string finish() override { return text::valid_utf8(std::exchange(pending_, {})); }

 private:
  const JsonTokenizer& tokenizer_;
  bool strip_;
  std::string pending_;
};

std::unique_ptr<TextStream> JsonTokenizer::stream(bool continues) const {
  return std::make_unique<JsonTextStream>(*this, continues);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& tokenizer_json) {
  std::ifstream file(tokenizer_json, std::ios::binary);
  if (!file) {
    throw Error(tokenizer_json.string() + " cannot be read: the bundle takes token ids only, or the file was lost");
  }
  const auto shallow = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) text::refuse("more than " + std::to_string(kDeepest) + " lists and objects inside each other");
    return true;
  };
  try {
    return std::make_unique<JsonTokenizer>(Json::parse(file, shallow));
  } catch (const Json::exception& error) {
    throw Error(tokenizer_json.string() + " is damaged (" + error.what() + "): export the bundle again");
  }
}

}  // namespace blockexport
