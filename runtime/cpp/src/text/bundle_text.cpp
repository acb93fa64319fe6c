#include "blockexport/text.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "blockexport/error.h"
#include "whole_number.h"

namespace blockexport {
namespace {

using Json = nlohmann::json;

// The object in a bundle's file; an empty one when the bundle has no such file.
Json read_json(const Manifest& manifest, const std::string& name) {
  if (manifest.files.count(name) == 0) return Json::object();
  const std::filesystem::path path = manifest.file(name);
  std::ifstream file(path, std::ios::binary);
  try {
    return Json::parse(file);
  } catch (const Json::exception& error) {
    throw Error(path.string() + " is damaged (" + error.what() + "): export the bundle again");
  }
}

// An entry such as "eos_token": text, or an object with the text as its content.
std::string token_text(const Json& config, const char* name) {
  if (!config.contains(name)) return {};
  const Json& value = config.at(name);
  if (value.is_object()) return value.value("content", "");
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::vector<std::int64_t> ids_of(const Json& value) {
  if (!value.is_array()) return {whole(value)};
  std::vector<std::int64_t> ids;
  for (const Json& id : value) ids.push_back(whole(id));
  return ids;
}

template <typename T>
T value_or(const Json& object, const char* name, T otherwise) {
  return object.contains(name) && !object.at(name).is_null() ? object.at(name).get<T>() : otherwise;
}

std::string trimmed(const std::string& text) {
  constexpr const char* white = " \t\n\r\f\v";
  const std::size_t start = text.find_first_not_of(white);
  return start == std::string::npos ? "" : text.substr(start, text.find_last_not_of(white) - start + 1);
}

std::string behind_thinking(const std::string& text) {
  constexpr std::string_view mark = "</think>";
  const std::size_t found = text.rfind(mark);
  const std::string rest = found == std::string::npos ? text : text.substr(found + mark.size());
  return rest.substr(std::min(rest.find_first_not_of('\n'), rest.size()));
}

}  // namespace

BundleText::BundleText(const Manifest& manifest, std::unique_ptr<Tokenizer> tokenizer)
    : tokenizer_(tokenizer ? std::move(tokenizer) : load_tokenizer(manifest.file("tokenizer.json"))) {
  const Json config = read_json(manifest, "tokenizer_config.json");
  const Json map = read_json(manifest, "special_tokens_map.json");
  std::int64_t eos = -1;
  const auto special = [&](const char* name) {
    const std::string own = token_text(config, name);
    const std::string text = own.empty() ? token_text(map, name) : own;
    return text.empty() ? std::int64_t{-1} : tokenizer_->token_to_id(text);
  };
  if (config.contains("add_bos_token") && config.at("add_bos_token").is_boolean()) {
    add_bos_ = config.at("add_bos_token").get<bool>() ? AddBos::kAlways : AddBos::kNever;
  }
  try {
    bos_ = special("bos_token");
    eos = special("eos_token");
    read_generation_config(manifest);
    read_chat_turns(manifest);
  } catch (const Json::exception& error) {
    throw Error(manifest.folder.string() + ": tokenizer_config.json, special_tokens_map.json, generation_config.json or "
                "chat_turns.json is damaged (" + error.what() + "): export the bundle again");
  }
  if (stop_ids_.empty()) stop_ids_ = manifest.eos_token_ids;
  if (stop_ids_.empty() && eos >= 0) stop_ids_ = {eos};
}

void BundleText::read_generation_config(const Manifest& manifest) {
  const Json config = read_json(manifest, "generation_config.json");
  if (config.contains("eos_token_id") && !config.at("eos_token_id").is_null()) stop_ids_ = ids_of(config.at("eos_token_id"));
  if (!value_or(config, "do_sample", false)) return;
  // What transformers takes where the file leaves a value out.
  sampling_.temperature = value_or(config, "temperature", 1.0);
  sampling_.top_k = config.contains("top_k") && !config.at("top_k").is_null() ? whole(config.at("top_k")) : 50;
  sampling_.top_p = value_or(config, "top_p", 1.0);
}

void BundleText::read_chat_turns(const Manifest& manifest) {
  const Json turns = read_json(manifest, "chat_turns.json");
  if (turns.empty()) return;
  before_ = turns.at("before");
  answer_ = turns.at("answer");
  answered_ = turns.at("answered");
  next_ = turns.at("next");
  trim_ = turns.at("trim");
  drop_thinking_ = turns.at("drop_thinking");
  has_system_ = !turns.at("system").is_null();
  if (has_system_) system_before_ = turns.at("system").at(0), system_after_ = turns.at("system").at(1);
  has_chat_ = true;
}

std::vector<std::int64_t> BundleText::prompt(std::string_view text) const {
  std::vector<std::int64_t> ids = tokenizer_->encode(text, true);
  const std::vector<std::int64_t> plain = tokenizer_->encode(text, false);
  if (bos_ < 0) return ids;
  const bool written = !plain.empty() && plain[0] == bos_;
  const bool added = ids.size() > plain.size() && ids[0] == bos_ && std::equal(plain.begin(), plain.end(), ids.begin() + 1);
  if (added && (written || add_bos_ == AddBos::kNever)) {
    ids.erase(ids.begin());
  } else if (add_bos_ == AddBos::kAlways && !written && !added) {
    ids.insert(ids.begin(), bos_);
  }
  return ids;
}

std::vector<std::int64_t> BundleText::chat(const std::vector<Message>& messages) const {
  if (!has_chat_) {
    throw Error("the bundle has no chat_turns.json, because its model has no chat template or one that is no fixed frame "
                "around the turns: use prompt() with a text of your own");
  }
  return tokenizer_->encode(framed(messages), false);
}

std::string BundleText::framed(const std::vector<Message>& messages) const {
  const auto content = [this](const Message& message) {
    const bool shortened = drop_thinking_ && message.role == "assistant";
    const std::string text = shortened ? behind_thinking(message.content) : message.content;
    return trim_ ? trimmed(text) : text;
  };
  std::string out;
  std::size_t at = 0;
  if (!messages.empty() && messages[0].role == "system") {
    if (!has_system_) throw Error("this model's chat format has no system message: put it into the first user message");
    out = system_before_ + content(messages[at++]) + system_after_;
  } else {
    out = before_;
  }
  for (bool user = true; at < messages.size(); user = !user) {
    const char* role = user ? "user" : "assistant";
    if (messages[at].role != role) {
      throw Error("message " + std::to_string(at) + " is from \"" + messages[at].role + "\" and should be from " + role);
    }
    const bool last = at + 1 == messages.size();
    out += content(messages[at++]) + (last ? answer_ : user ? answered_ : next_);
  }
  if (messages.empty() || messages.back().role != "user") throw Error("the last message must be the user's");
  return out;
}

}  // namespace blockexport
