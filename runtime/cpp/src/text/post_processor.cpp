#include "text/pipeline.h"
#include "whole_number.h"

namespace blockexport::text {
namespace {

Template make_single(const Json& part) {
  only_keys(part, {"type", "single", "pair", "special_tokens"}, "post_processor");
  Template made;
  bool text_seen = false;
  for (const Json& piece : part.at("single")) {
    if (piece.contains("Sequence")) {
      if (text_seen || piece.at("Sequence").at("id") != "A") refuse("a template with another text than A");
      text_seen = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").at("id");
    auto& side = text_seen ? made.after : made.before;
    for (const Json& id : part.at("special_tokens").at(name).at("ids")) side.push_back(whole(id));
  }
  if (!text_seen) refuse("a template without a text");
  return made;
}

}  // namespace

Template make_template(const Json& part) {
  if (part.is_null()) return {};
  const std::string type = part.value("type", "");
  if (type == "TemplateProcessing") return make_single(part);
  // Concerns offsets only.
  if (type == "ByteLevel") return {};
  if (type == "Sequence") {
    only_keys(part, {"type", "processors"}, "post_processor");
    Template made;
    for (const Json& step : part.at("processors")) {
      const Template next = make_template(step);
      made.before.insert(made.before.begin(), next.before.begin(), next.before.end());
      made.after.insert(made.after.end(), next.after.begin(), next.after.end());
    }
    return made;
  }
  refuse("the post-processor \"" + type + "\"");
}

}  // namespace blockexport::text
