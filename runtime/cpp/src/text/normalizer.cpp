#include <algorithm>
#include <utility>

#include "blockexport/error.h"
#include "text/pipeline.h"
#include "text/unicode.h"

namespace blockexport::text {

void refuse(const std::string& what) {
  throw Error("tokenizer.json has " + what + ", which this tokenizer does not know: pass a Tokenizer of your own");
}

void only_keys(const Json& part, std::initializer_list<std::string_view> known, std::string_view where) {
  if (!part.is_object()) refuse("no object as its " + std::string(where));
  for (const auto& [key, value] : part.items()) {
    bool found = false;
    for (const std::string_view name : known) found = found || name == key;
    if (!found) refuse("the key \"" + key + "\" in its " + std::string(where));
  }
}

namespace {

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.append(text, at, found - at);
    out += to;
  }
  return out.append(text, at, std::string::npos);
}

// How many times longer a step may make a text.
double growth_of(const Json& part) {
  const std::string type = part.is_object() ? part.value("type", "") : "";
  double growth = 1;
  if (type == "Sequence") {
    for (const Json& step : part.at(part.contains("normalizers") ? "normalizers" : "pretokenizers")) growth *= growth_of(step);
  } else if (type == "Replace") {
    const std::string from = part.at("pattern").at("String"), to = part.at("content");
    growth = static_cast<double>(to.size()) / static_cast<double>(from.size());
  } else if (type == "Metaspace") {
    growth = static_cast<double>(part.at("replacement").get<std::string>().size());
  } else if (type == "Prepend") {
    growth = static_cast<double>(part.at("prepend").get<std::string>().size()) / 3;  // of a word of some letters
  } else if (type == "ByteLevel" || type == "NFC") {
    growth = 2;
  }
  return std::max(1.0, growth);
}

}  // namespace

void require_bounded(const Json& tokenizer) {
  constexpr double most = 64;
  if (growth_of(tokenizer.at("normalizer")) * growth_of(tokenizer.at("pre_tokenizer")) > most) {
    refuse("steps that could make a text more than " + std::to_string(static_cast<int>(most)) + " times longer");
  }
}

Normalizer make_normalizer(const Json& part) {
  if (part.is_null()) return [](std::string text) { return text; };
  const std::string type = part.value("type", "");
  if (type == "Sequence") {
    only_keys(part, {"type", "normalizers"}, "normalizer");
    std::vector<Normalizer> steps;
    for (const Json& step : part.at("normalizers")) steps.push_back(make_normalizer(step));
    return [steps = std::move(steps)](std::string text) {
      for (const Normalizer& step : steps) text = step(std::move(text));
      return text;
    };
  }
  if (type == "Prepend") {
    only_keys(part, {"type", "prepend"}, "normalizer");
    return [prefix = part.at("prepend").get<std::string>()](std::string text) {
      return text.empty() ? text : prefix + text;
    };
  }
  if (type == "Replace") {
    only_keys(part, {"type", "pattern", "content"}, "normalizer");
    if (!part.at("pattern").contains("String")) refuse("a Replace normalizer by regular expression");
    const std::string from = part.at("pattern").at("String");
    if (from.empty()) refuse("a Replace normalizer of the empty string");
    return [from, to = part.at("content").get<std::string>()](std::string text) { return replaced(text, from, to); };
  }
  if (type == "NFC") {
    only_keys(part, {"type"}, "normalizer");
    return [](std::string text) { return to_utf8(nfc(to_utf32(text))); };
  }
  refuse("the normalizer \"" + type + "\"");
}

}  // namespace blockexport::text
