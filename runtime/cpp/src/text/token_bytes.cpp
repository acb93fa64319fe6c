#include "text/pipeline.h"
#include "text/unicode.h"

namespace blockexport::text {
namespace {

int hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

// The value of `<0x0A>`, or -1.
int raw_byte(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

TokenBytes make_sequence(const Json& steps) {
  TokenBytes made;
  made.kind = TokenBytes::Kind::kFallback;
  bool space = false, fallback = false, fused = false;
  for (const Json& step : steps) {
    const std::string type = step.value("type", "");
    if (type == "Replace" && !space && step.at("pattern").contains("String") && step.at("content") == " ") {
      made.space = step.at("pattern").at("String");
      space = true;
    } else if (type == "ByteFallback" && !fallback) {
      fallback = true;
    } else if (type == "Fuse" && !fused) {
      fused = true;
    } else if (type == "Strip" && fused && step.at("content") == " " && step.at("stop") == 0 &&
               step.at("start") == 1 && !made.strip_first_space) {
      made.strip_first_space = true;
    } else {
      refuse("the decoder step " + step.dump());
    }
  }
  if (space && made.space.empty()) refuse("a decoder that replaces the empty string");
  if (!space || !fallback || !fused) refuse("a decoder sequence without Replace, ByteFallback and Fuse");
  return made;
}

}  // namespace

TokenBytes make_token_bytes(const Json& part) {
  const std::string type = part.is_object() ? part.value("type", "") : "";
  if (type == "ByteLevel") return {};
  if (type == "Sequence" && part.at("decoders").size() == 1) return make_token_bytes(part.at("decoders").at(0));
  if (type == "Sequence") return make_sequence(part.at("decoders"));
  if (type == "Metaspace") {
    TokenBytes made;
    made.kind = TokenBytes::Kind::kMetaspace;
    made.space = part.at("replacement");
    if (made.space.empty()) refuse("a decoder that replaces the empty string");
    made.strip_first_space = part.value("prepend_scheme", "always") != "never";
    return made;
  }
  refuse(part.is_null() ? "no decoder" : "the decoder \"" + type + "\"");
}

std::string TokenBytes::bytes(std::string_view token, bool& single) const {
  single = false;
  if (kind == Kind::kByteLevel) {
    std::string out;
    for (const char32_t point : to_utf32(token)) {
      const int byte = byte_of_character(point);
      if (byte < 0) return std::string(token);  // an added token, written as it is
      out += static_cast<char>(static_cast<unsigned char>(byte));
    }
    return out;
  }
  if (kind == Kind::kFallback) {
    const int byte = raw_byte(token);
    single = byte >= 0;
    if (single) return std::string(1, static_cast<char>(static_cast<unsigned char>(byte)));
  }
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const bool is_space = token.compare(at, space.size(), space) == 0;
    out += is_space ? ' ' : token[at];
    at += is_space ? space.size() : 1;
  }
  return out;
}

}  // namespace blockexport::text
