#include "blockexport/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "blockexport/error.h"

namespace blockexport {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kFirstLength = 4;  // tokens proposed at first; twice as many after a call that took all

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check(const Decoder& decoder, const Ids& prompt) {
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

void check_draft(const Decoder& decoder, std::int64_t draft_tokens) {
  if (decoder.manifest().last_logits_only) {
    throw Error("the bundle gives the logits of the last token alone, and a draft is verified by those of several: "
                "generate without a draft, or export again with --logits all");
  }
  if (draft_tokens < 1 || draft_tokens >= kPrefillChunk) {
    throw Error("draft_tokens is " + std::to_string(draft_tokens) + " and must be 1.." +
                std::to_string(kPrefillChunk - 1));
  }
}

bool is_in(const Ids& ids, std::int64_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

// What the model chooses after `pending`: the proposed tokens that stay, and one more. What was refused is forgotten.
Ids verified(Decoder& decoder, std::int64_t pending, const Ids& proposal, Sampler& sampler, const Ids& stop_ids) {
  const std::int64_t held = decoder.lengths().front();
  Ids run = {pending}, chosen;
  run.insert(run.end(), proposal.begin(), proposal.end());
  const Logits given = decoder.prefill(run);
  for (std::size_t i = 0; i < run.size(); ++i) {
    chosen.push_back(sampler.sample(given.at(0, static_cast<std::int64_t>(i))));
    if (i == proposal.size() || chosen.back() != proposal[i] || is_in(stop_ids, chosen.back())) break;
  }
  decoder.forget_after(held + static_cast<std::int64_t>(chosen.size()));
  return chosen;
}

}  // namespace

std::vector<float> feed(Decoder& decoder, const std::vector<std::int64_t>& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  std::vector<float> logits;
  for (std::int64_t start = 0; start < count; start += kPrefillChunk) {
    const std::vector<std::int64_t> chunk(ids.begin() + start, ids.begin() + std::min(start + kPrefillChunk, count));
    const Logits given = decoder.prefill_last(chunk);
    if (start + kPrefillChunk >= count) logits = given.last();
  }
  return logits;
}

Generation generate(Decoder& decoder, const Ids& prompt, Sampler& sampler, const Ids& stop_ids,
                    std::int64_t max_new_tokens, const std::function<bool(std::int64_t)>& each, Draft* draft,
                    std::int64_t draft_tokens) {
  check(decoder, prompt);
  if (draft != nullptr) check_draft(decoder, draft_tokens);
  Generation made;
  auto started = std::chrono::steady_clock::now();
  decoder.reset();
  const std::vector<float> logits = feed(decoder, prompt);
  made.prefill_seconds = seconds_since(started);
  if (max_new_tokens < 1) return made;
  Ids text = prompt, chosen = {sampler.sample(logits)};
  std::int64_t length = std::min(kFirstLength, draft_tokens);
  while (true) {
    for (const std::int64_t id : chosen) {
      if (is_in(stop_ids, id)) {
        made.reason = FinishReason::kStopToken;
        return made;
      }
      made.ids.push_back(id);
      text.push_back(id);
      if (each && !each(id)) {
        made.reason = FinishReason::kCallback;
        return made;
      }
    }
    const std::int64_t wanted = max_new_tokens - static_cast<std::int64_t>(made.ids.size());
    if (wanted < 1) return made;
    if (decoder.room() < 1) {
      made.reason = FinishReason::kCacheFull;
      return made;
    }
    started = std::chrono::steady_clock::now();
    Ids proposal;
    if (draft != nullptr) proposal = draft->propose(text, std::min({length, decoder.room() - 1, wanted - 1}));
    const auto proposed = static_cast<std::int64_t>(proposal.size());
    chosen = verified(decoder, text.back(), proposal, sampler, stop_ids);
    const auto accepted = static_cast<std::int64_t>(chosen.size()) - 1;
    if (proposed > 0) length = std::clamp<std::int64_t>(accepted == proposed ? 2 * proposed : accepted, 1, draft_tokens);
    made.decode_seconds += seconds_since(started);
    made.steps += accepted + 1;
    made.proposed += proposed;
    made.accepted += accepted;
  }
}

}  // namespace blockexport
