#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "blockexport/decoder.h"
#include "blockexport/draft.h"
#include "blockexport/sampling.h"

namespace blockexport {

/// Why a generation ended.
enum class FinishReason { kStopToken, kLength, kCacheFull, kCallback };

/// What a generation gave. Stop tokens end it and are not part of it.
struct Generation {
  std::vector<std::int64_t> ids;
  FinishReason reason = FinishReason::kLength;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;  ///< of all steps after the prompt
  std::int64_t steps = 0;         ///< tokens that were chosen after the first
  std::int64_t proposed = 0;      ///< tokens of a draft, of which `accepted` were the model's own choice
  std::int64_t accepted = 0;
};

/// Positions per prefill call: logits of a whole long prompt would take gigabytes.
inline constexpr std::int64_t kPrefillChunk = 512;

/// The most tokens that a draft proposes at a time, where nothing else is asked for.
inline constexpr std::int64_t kDraftTokens = 8;

/// Puts `ids` into the cache after what is there, in chunks, and returns the logits after the last.
std::vector<float> feed(Decoder& decoder, const std::vector<std::int64_t>& ids);

/// Continues `prompt` with a decoder, whose cache is emptied first, until a stop token, `max_new_tokens` or the last
/// cache slot. `each` hears every token as it is chosen; it ends the generation by returning false.
/// With a `draft`, up to `draft_tokens` tokens that it proposes are verified in one call: the same answer, sooner where
/// the draft is right, but for choices that hang on the last bits, which a call of several tokens rounds in another way.
/// Throws Error: an empty prompt, one longer than the cache, a headless decoder; with a draft, one that gives the logits of
/// last tokens alone, or draft_tokens outside of 1..kPrefillChunk - 1.
Generation generate(Decoder& decoder, const std::vector<std::int64_t>& prompt, Sampler& sampler,
                    const std::vector<std::int64_t>& stop_ids, std::int64_t max_new_tokens,
                    const std::function<bool(std::int64_t)>& each = {}, Draft* draft = nullptr,
                    std::int64_t draft_tokens = kDraftTokens);

}  // namespace blockexport
