#include <algorithm>

#include "text/pipeline.h"
#include "text/unicode.h"
#include "whole_number.h"

namespace blockexport::text {
namespace {

// Where the white space at the end of `text` begins, and how much of it there is at its start.
std::size_t white_start(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t start = end - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    if (!is_white_space(to_utf32(text.substr(start, end - start))[0])) break;
    end = start;
  }
  return end;
}

std::size_t white_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto length = static_cast<std::size_t>(utf8_length(text.substr(at)));
    if (!is_white_space(to_utf32(text.substr(at, length))[0])) break;
    at += length;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const Json& list, const Normalizer& normalizer) {
  for (const Json& entry : list) {
    only_keys(entry, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, "added_tokens");
    if (entry.value("single_word", false)) refuse("the added token " + entry.at("content").dump() + " as single_word");
    const std::string content = entry.at("content");
    const bool normalized = entry.value("normalized", !entry.value("special", false));
    const std::string pattern = normalized ? normalizer(content) : content;
    if (pattern.empty()) refuse("an empty added token");
    tokens_.push_back({content, pattern, whole(entry.at("id")),
                       entry.value("special", false), entry.value("lstrip", false), entry.value("rstrip", false)});
    by_id_[tokens_.back().id] = tokens_.size() - 1;
    (normalized ? normalized_ : plain_)[tokens_.back().pattern[0]].push_back(tokens_.size() - 1);
  }
  for (Index* index : {&plain_, &normalized_}) {
    for (auto& [byte, candidates] : *index) {
      std::stable_sort(candidates.begin(), candidates.end(), [this](std::size_t a, std::size_t b) {
        return tokens_[a].pattern.size() > tokens_[b].pattern.size();
      });
    }
  }
}

const AddedTokens::Token* AddedTokens::longest_at(std::string_view text, std::size_t at, const Index& index) const {
  const auto found = index.find(text[at]);
  if (found == index.end()) return nullptr;
  for (const std::size_t candidate : found->second) {
    const std::string& pattern = tokens_[candidate].pattern;
    if (text.compare(at, pattern.size(), pattern) == 0) return &tokens_[candidate];
  }
  return nullptr;
}

std::vector<AddedTokens::Part> AddedTokens::cut(std::string_view text, bool normalized) const {
  const Index& index = normalized ? normalized_ : plain_;
  std::vector<Part> parts;
  std::size_t rest = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Token* token = longest_at(text, at, index);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t start = at, end = at + token->pattern.size();
    at = end;  // the next token may begin inside white space that this one takes
    if (token->left) start = std::max(rest, white_start(text.substr(0, start)));
    if (token->right) end += white_length(text.substr(end));
    if (rest < start) parts.push_back({text.substr(rest, start - rest)});
    parts.push_back({text.substr(start, end - start), token->id});
    rest = end;
  }
  if (rest < text.size()) parts.push_back({text.substr(rest)});
  return parts;
}

bool AddedTokens::special(std::int64_t id) const {
  const auto found = by_id_.find(id);
  return found != by_id_.end() && tokens_[found->second].special;
}

const std::string* AddedTokens::content(std::int64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second].content;
}

std::int64_t AddedTokens::id(std::string_view content) const {
  const auto found =
      std::find_if(tokens_.begin(), tokens_.end(), [content](const Token& token) { return token.content == content; });
  return found == tokens_.end() ? -1 : found->id;
}

}  // namespace blockexport::text
