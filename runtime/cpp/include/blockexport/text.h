#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "blockexport/manifest.h"
#include "blockexport/sampling.h"
#include "blockexport/tokenizer.h"

namespace blockexport {

/// One turn of a conversation.
struct Message {
  std::string role;  ///< `system` (only first), `user`, `assistant`, in turns
  std::string content;
};

/// The text side of a bundle: its tokenizer, its chat format, the tokens that end an answer, and suggested sampling.
class BundleText {
 public:
  /// Reads tokenizer.json, tokenizer_config.json, generation_config.json and chat_turns.json of the bundle.
  /// A tokenizer of your own takes the place of tokenizer.json. Throws Error naming what cannot be read.
  explicit BundleText(const Manifest& manifest, std::unique_ptr<Tokenizer> tokenizer = nullptr);

  const Tokenizer& tokenizer() const { return *tokenizer_; }

  /// Ids of a text as it is, with BOS as the model's files ask for it.
  std::vector<std::int64_t> prompt(std::string_view text) const;

  /// Ids of a conversation, ready for the assistant's answer. Throws Error when the bundle has no chat format, or the
  /// roles are in an order that the format does not have.
  std::vector<std::int64_t> chat(const std::vector<Message>& messages) const;
  bool has_chat() const { return has_chat_; }

  /// Tokens that end an answer.
  const std::vector<std::int64_t>& stop_ids() const { return stop_ids_; }

  /// What generation_config.json suggests: greedy unless it says "do_sample": true.
  const SamplingOptions& sampling() const { return sampling_; }

 private:
  void read_chat_turns(const Manifest& manifest);
  void read_generation_config(const Manifest& manifest);
  std::string framed(const std::vector<Message>& messages) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::int64_t> stop_ids_;
  SamplingOptions sampling_;
  enum class AddBos { kAsTemplate, kNever, kAlways } add_bos_ = AddBos::kAsTemplate;
  std::int64_t bos_ = -1;

  bool has_chat_ = false, has_system_ = false, trim_ = false, drop_thinking_ = false;
  std::string before_, next_;                 // before the first user text; between an answer and the next user text
  std::string answer_, answered_;             // between a user text and the answer asked for; and one that is there
  std::string system_before_, system_after_;  // around a system text, in place of before_
};

}  // namespace blockexport
