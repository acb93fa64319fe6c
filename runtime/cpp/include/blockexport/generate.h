#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "blockexport/decoder.h"
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
  std::int64_t steps = 0;
};

/// Positions per prefill call: logits of a whole long prompt would take gigabytes.
inline constexpr std::int64_t kPrefillChunk = 512;

/// Puts `ids` into the cache after what is there, in chunks, and returns the logits after the last.
std::vector<float> feed(Decoder& decoder, const std::vector<std::int64_t>& ids);

/// Continues `prompt` with a decoder, whose cache is emptied first, until a stop token, `max_new_tokens` or the last
/// cache slot. `each` hears every token as it is chosen; it ends the generation by returning false.
/// Throws Error: an empty prompt, one longer than the cache, a headless decoder.
Generation generate(Decoder& decoder, const std::vector<std::int64_t>& prompt, Sampler& sampler,
                    const std::vector<std::int64_t>& stop_ids, std::int64_t max_new_tokens,
                    const std::function<bool(std::int64_t)>& each = {});

}  // namespace blockexport
