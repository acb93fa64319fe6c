#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace blockexport {

/// Text that arrives token by token. A piece never ends inside a UTF-8 character.
class TextStream {
 public:
  virtual ~TextStream() = default;

  /// The text that `id` completes; empty while a character is still incomplete.
  virtual std::string next(std::int64_t id) = 0;

  /// What is left at the end: U+FFFD for a character that never became complete, else nothing.
  virtual std::string finish() = 0;
};

/// Text to token ids and back. Implement this to bring a tokenizer of your own.
/// Const methods may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Token ids of UTF-8 `text`. `add_special_tokens` adds what the model's template puts around a text (often BOS).
  /// Throws Error when `text` is not valid UTF-8.
  virtual std::vector<std::int64_t> encode(std::string_view text, bool add_special_tokens = true) const = 0;

  /// Text of token ids; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary are skipped.
  virtual std::string decode(const std::vector<std::int64_t>& ids, bool skip_special_tokens = true) const = 0;

  /// A stream for generated ids. `continues` says that the text follows another, so that a leading space is kept.
  virtual std::unique_ptr<TextStream> stream(bool continues = true) const = 0;

  /// The id of a token by its exact text, or -1.
  virtual std::int64_t token_to_id(std::string_view token) const = 0;
};

/// The tokenizer of a Hugging Face `tokenizer.json`: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM) and SentencePiece-like
/// BPE with byte fallback (Llama 2, Mistral), with the ids of Python's `tokenizers`.
/// Throws Error naming any part of the file that is not known here; nothing is skipped.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& tokenizer_json);

}  // namespace blockexport
