#include <algorithm>
#include <queue>

#include "text/pipeline.h"
#include "text/unicode.h"
#include "whole_number.h"

namespace blockexport::text {
namespace {

std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32 | right; }

std::string byte_token(unsigned char byte) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  return std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + '>';
}

bool is_set(const Json& model, const char* key) {
  return model.contains(key) && !model.at(key).is_null() && model.at(key) != "" && model.at(key) != 0;
}

}  // namespace

Bpe::Bpe(const Json& model) {
  only_keys(model,
            {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
             "byte_fallback", "ignore_merges", "vocab", "merges"},
            "model");
  if (model.value("type", "BPE") != "BPE") refuse("the model type " + model.at("type").dump());
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (is_set(model, key)) refuse("a model with " + std::string(key));
  }
  for (const auto& [token, id] : model.at("vocab").items()) {
    if (natural(id) > 1U << 21) refuse("the token id " + id.dump());
    const auto number = static_cast<std::uint32_t>(natural(id));
    ids_.emplace(token, number);
    if (tokens_.size() <= number) tokens_.resize(number + std::size_t{1});
    tokens_[number] = token;
  }
  byte_fallback_ = model.value("byte_fallback", false);
  fuse_unknown_ = model.value("fuse_unk", false);
  ignore_merges_ = model.value("ignore_merges", false);
  if (model.contains("unk_token") && model.at("unk_token").is_string()) {
    unknown_ = id(model.at("unk_token").get<std::string>());
    if (unknown_ < 0) refuse("an unk_token that is no token");
  }
  read_merges(model.at("merges"));
}

void Bpe::read_merges(const Json& merges) {
  std::uint32_t rank = 0;
  for (const Json& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string line = merge;
      const std::size_t space = line.find(' ');
      if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
        refuse("the merge " + merge.dump());
      }
      left = line.substr(0, space), right = line.substr(space + 1);
    } else {
      left = merge.at(0), right = merge.at(1);
    }
    const std::int64_t a = id(left), b = id(right), both = id(left + right);
    if (a < 0 || b < 0 || both < 0) refuse("the merge " + merge.dump() + " of what are no tokens");
    merges_[pair_key(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b))] = {
        rank++, static_cast<std::uint32_t>(both)};
  }
}

std::int64_t Bpe::id(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found == ids_.end() ? -1 : static_cast<std::int64_t>(found->second);
}

void Bpe::encode(std::string_view word, std::vector<std::int64_t>& ids) const {
  if (ignore_merges_) {
    if (const std::int64_t whole = id(word); whole >= 0) {
      ids.push_back(whole);
      return;
    }
  }
  std::vector<Symbol> symbols;
  split(word, symbols);
  merge(symbols);
  for (const Symbol& symbol : symbols) {
    if (!symbol.removed) ids.push_back(symbol.id);
  }
}

// One symbol per character: the character's own token, else its bytes', else the unknown token.
void Bpe::split(std::string_view word, std::vector<Symbol>& symbols) const {
  const auto add = [&symbols](std::int64_t id) {
    const auto count = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({static_cast<std::uint32_t>(id), count - 1, count + 1});
  };
  bool unknown = false;  // an unknown token waits: fused ones are one
  while (!word.empty()) {
    const std::string character(word.substr(0, static_cast<std::size_t>(utf8_length(word))));
    word.remove_prefix(character.size());
    if (const std::int64_t known = id(character); known >= 0) {
      if (unknown) add(unknown_);
      unknown = false;
      add(known);
      continue;
    }
    if (byte_fallback_) {
      std::vector<std::int64_t> bytes;
      for (const char byte : character) bytes.push_back(id(byte_token(static_cast<unsigned char>(byte))));
      if (std::find(bytes.begin(), bytes.end(), -1) == bytes.end()) {
        for (const std::int64_t byte : bytes) add(byte);
        continue;
      }
    }
    if (unknown_ < 0) continue;  // a byte without a token is dropped, as tokenizers does
    if (unknown && !fuse_unknown_) add(unknown_);
    unknown = true;
  }
  if (unknown) add(unknown_);
  if (!symbols.empty()) symbols.back().next = -1;
}

// The pair of lowest rank first, the leftmost among equals.
void Bpe::merge(std::vector<Symbol>& symbols) const {
  struct Candidate {
    Merge merge;
    std::int32_t at;
    bool operator<(const Candidate& other) const {
      return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : at > other.at;
    }
  };
  std::priority_queue<Candidate> queue;
  const auto symbol = [&symbols](std::int32_t at) -> Symbol& { return symbols[static_cast<std::size_t>(at)]; };
  const auto consider = [&](std::int32_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    const auto found = merges_.find(pair_key(symbol(at).id, symbol(symbol(at).next).id));
    if (found != merges_.end()) queue.push({found->second, at});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) consider(static_cast<std::int32_t>(i));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.at);
    if (left.removed || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    // The pair may have become another one since it was queued.
    const auto found = merges_.find(pair_key(left.id, right.id));
    if (found == merges_.end() || found->second.id != best.merge.id) continue;
    left.id = best.merge.id;
    right.removed = true;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
}

}  // namespace blockexport::text
