#include "blockexport/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "blockexport/error.h"

namespace blockexport {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check(const Decoder& decoder, const std::vector<std::int64_t>& prompt) {
  if (decoder.manifest().headless) {
    throw Error("a headless export gives hidden states, not logits: generate needs one made without --headless");
  }
  if (prompt.empty()) throw Error("the prompt has no tokens, and a model needs at least one to go on from");
  if (static_cast<std::int64_t>(prompt.size()) > decoder.max_sequence_length()) {
    throw Error("the prompt has " + std::to_string(prompt.size()) + " tokens and the cache " +
                std::to_string(decoder.max_sequence_length()) +
                " slots: " + decoder.room_for("prompt", static_cast<std::int64_t>(prompt.size())));
  }
}

}  // namespace

std::vector<float> feed(Decoder& decoder, const std::vector<std::int64_t>& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  std::vector<float> logits;
  for (std::int64_t start = 0; start < count; start += kPrefillChunk) {
    const std::vector<std::int64_t> chunk(ids.begin() + start, ids.begin() + std::min(start + kPrefillChunk, count));
    const Logits given = decoder.prefill(chunk);
    if (start + kPrefillChunk >= count) logits = given.last();
  }
  return logits;
}

Generation generate(Decoder& decoder, const std::vector<std::int64_t>& prompt, Sampler& sampler,
                    const std::vector<std::int64_t>& stop_ids, std::int64_t max_new_tokens,
                    const std::function<bool(std::int64_t)>& each) {
  check(decoder, prompt);
  Generation made;
  auto started = std::chrono::steady_clock::now();
  decoder.reset();
  std::vector<float> logits = feed(decoder, prompt);
  made.prefill_seconds = seconds_since(started);
  while (static_cast<std::int64_t>(made.ids.size()) < max_new_tokens) {
    const std::int64_t id = sampler.sample(logits);
    if (std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end()) {
      made.reason = FinishReason::kStopToken;
      return made;
    }
    made.ids.push_back(id);
    if (each && !each(id)) {
      made.reason = FinishReason::kCallback;
      return made;
    }
    if (static_cast<std::int64_t>(made.ids.size()) == max_new_tokens) break;
    if (decoder.room() < 1) {
      made.reason = FinishReason::kCacheFull;
      return made;
    }
    started = std::chrono::steady_clock::now();
    logits = feed(decoder, {id});
    made.decode_seconds += seconds_since(started);
    ++made.steps;
  }
  return made;
}

}  // namespace blockexport
