#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "blockexport/decoder.h"

namespace blockexport {

/// What proposes tokens that a decoder verifies several at a time. One object serves one generation after the other.
class Draft {
 public:
  virtual ~Draft() = default;

  /// At most `count` ids that might follow the ids `text`.
  virtual std::vector<std::int64_t> propose(const std::vector<std::int64_t>& text, std::int64_t count) = 0;
};

/// What followed the last occurrence of the longest suffix, of three tokens at most, that has occurred before.
std::unique_ptr<Draft> ngram_draft();

/// The likeliest tokens of a smaller model, in a cache of as many slots as `large` has, or as its own RoPE table has rows.
/// Throws Error: as open_decoder, a headless bundle, another tokenizer.json than the large model's.
std::unique_ptr<Draft> model_draft(const std::filesystem::path& bundle, const Decoder& large,
                                   DecoderOptions options = {});

}  // namespace blockexport
