#include "blockexport/manifest.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "backends.h"
#include "blockexport/error.h"
#include "sha256.h"
#include "whole_number.h"

namespace blockexport {
namespace {

using Json = nlohmann::json;

struct Invalid : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr const char* kReport = "parity/report.json";

constexpr std::pair<DType, const char*> kTypes[] = {{DType::kInt64, "int64"},
                                                    {DType::kInt32, "int32"},
                                                    {DType::kFloat32, "float32"},
                                                    {DType::kFloat16, "float16"},
                                                    {DType::kBFloat16, "bfloat16"}};

std::vector<Port> read_ports(const Json& list) {
  std::vector<Port> ports;
  for (const Json& entry : list) {
    Port port{entry.at("name"), dtype_of(entry.at("dtype")), {}, {}};
    for (const Json& axis : entry.at("shape")) {
      if (axis.is_string()) {
        port.shape.emplace_back(axis.get<std::string>());
      } else {
        port.shape.emplace_back(whole(axis));
      }
    }
    if (entry.at("aliases").is_string()) port.aliases = entry.at("aliases");
    ports.push_back(std::move(port));
  }
  return ports;
}

std::map<std::string, FileEntry> read_files(const Json& list) {
  std::map<std::string, FileEntry> files;
  for (const auto& [name, entry] : list.items()) {
    const std::filesystem::path path(name);
    if (path.is_absolute() || name.find("..") != std::string::npos) {
      throw Error("the manifest lists the file \"" + name + "\" outside of the bundle: do not trust this bundle");
    }
    files[name] = {entry.at("sha256"), entry.at("sampled_sha256"), natural(entry.at("bytes")),
                   entry.at("made_from").get<std::map<std::string, std::string>>()};
  }
  return files;
}

// Numbers that no export writes, and that would ask for impossible caches.
void check_numbers(const Manifest& manifest) {
  const std::pair<const char*, std::int64_t> positive[] = {{"vocab_size", manifest.vocab_size},
                                                           {"hidden_size", manifest.hidden_size},
                                                           {"num_hidden_layers", manifest.num_hidden_layers},
                                                           {"num_key_value_heads", manifest.num_key_value_heads},
                                                           {"head_dim", manifest.head_dim},
                                                           {"max_sequence_length", manifest.max_sequence_length}};
  for (const auto& [name, value] : positive) {
    if (value < 1) throw Invalid(std::string(name) + " is " + std::to_string(value) + ", and must be above 0");
  }
  if (manifest.max_sequence_length > manifest.rope_table_rows) {
    throw Invalid("max_sequence_length is " + std::to_string(manifest.max_sequence_length) + ", and must be within 1.." +
                  std::to_string(manifest.rope_table_rows) + ", the rope_table_rows");
  }
  for (const auto* ports : {&manifest.inputs, &manifest.outputs}) {
    for (const Port& port : *ports) {
      if (!is_cache(port)) continue;
      const std::vector<std::variant<std::string, std::int64_t>> sizes = {
          manifest.num_key_value_heads, manifest.max_sequence_length, manifest.head_dim};
      if (port.shape.size() != 4 || !std::equal(sizes.begin(), sizes.end(), port.shape.begin() + 1)) {
        throw Invalid("the shape of " + port.name + " is not [batch_size, num_key_value_heads, max_sequence_length, head_dim]");
      }
    }
  }
}

Manifest from_json(const Json& data, const std::filesystem::path& folder) {
  const Json& config = data.at("config");
  Manifest made;
  made.folder = folder;
  made.model_type = config.at("model_type");
  made.precision = data.at("precision");
  made.dtype = made.precision == "fp32" ? DType::kFloat32 : made.precision == "fp16" ? DType::kFloat16 : DType::kBFloat16;
  made.vocab_size = whole(config.at("vocab_size"));
  made.hidden_size = whole(config.at("hidden_size"));
  made.num_hidden_layers = whole(config.at("num_hidden_layers"));
  made.num_key_value_heads = whole(config.at("num_key_value_heads"));
  made.head_dim = whole(config.at("head_dim"));
  made.max_sequence_length = whole(data.at("max_sequence_length"));
  made.rope_table_rows = whole(data.at("rope_table_rows"));
  made.bos_token_id = config.at("bos_token_id").is_null() ? -1 : whole(config.at("bos_token_id"));
  for (const Json& id : config.at("eos_token_ids")) made.eos_token_ids.push_back(whole(id));
  made.headless = data.at("headless");
  made.last_logits_only = data.at("last_logits_only");
  made.inputs = read_ports(data.at("inputs"));
  made.outputs = read_ports(data.at("outputs"));
  made.files = read_files(data.at("files"));
  check_numbers(made);
  return made;
}

}  // namespace

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kInt64: return 8;
    case DType::kInt32:
    case DType::kFloat32: return 4;
    default: return 2;
  }
}

std::string name_of(DType dtype) {
  for (const auto& [type, name] : kTypes) {
    if (type == dtype) return name;
  }
  return "unknown";
}

DType dtype_of(const std::string& name) {
  for (const auto& [type, known] : kTypes) {
    if (known == name) return type;
  }
  throw Error("the type \"" + name + "\" is none of int64, int32, float32, float16, bfloat16");
}

std::filesystem::path Manifest::file(const std::string& name) const {
  const std::filesystem::path path = folder / name;
  if (files.count(name) == 0) throw Error(folder.string() + " lists no " + name + " in its manifest: export it again");
  if (!std::filesystem::is_regular_file(path)) {
    throw Error(path.string() + " is missing, and the manifest lists it: copy the whole bundle, or export it again");
  }
  return path;
}

Manifest read_manifest(const std::filesystem::path& bundle) {
  const std::filesystem::path path = bundle / "manifest.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(bundle.string() + " is not a bundle: it has no manifest.json. `blockexport onnx MODEL -o BUNDLE` makes one");
  }
  try {
    const Json data = Json::parse(file);
    const auto version = whole(data.at("schema_version"));
    if (version != kSchemaVersion) {
      throw Error(path.string() + " has schema version " + std::to_string(version) + " and this program reads " +
                  std::to_string(kSchemaVersion) + ": build it with the blockexport that wrote the bundle");
    }
    if (data.contains("stage")) {
      throw Error(bundle.string() + " is a stage, with some of a model's layers, and this program runs whole models: "
                  "export it without --layers");
    }
    if (data.contains("embedding")) {
      throw Error(bundle.string() + " gives embeddings, and this program runs what gives logits or hidden states: "
                  "export it without --task embed, or run its model.onnx with ONNX Runtime's own interface");
    }
    return from_json(data, bundle);
  } catch (const Json::exception& error) {
    throw Error(path.string() + " is damaged (" + error.what() + "): export the bundle again");
  } catch (const Invalid& error) {
    throw Error(path.string() + " is damaged (" + error.what() + "): export the bundle again");
  }
}

void verify_file(const Manifest& manifest, const std::string& name, bool whole) {
  const std::filesystem::path path = manifest.file(name);
  const FileEntry& entry = manifest.files.at(name);
  const std::uint64_t bytes = std::filesystem::file_size(path);
  if (bytes != entry.bytes) {
    throw Error(path.string() + " has " + std::to_string(bytes) + " bytes and the manifest says " +
                std::to_string(entry.bytes) + ": copy the bundle again");
  }
  const std::string found = whole ? sha256_of(path) : sampled_sha256_of(path);
  const std::string& listed = whole ? entry.sha256 : entry.sampled_sha256;
  if (found != listed) {
    throw Error(path.string() + " has the SHA-256 " + found + (whole ? "" : " in its sampled pages") +
                " and the manifest says " + listed + ": it is another file, or damaged; copy the bundle again");
  }
}

void verify_with_sources(const Manifest& manifest, const std::string& name, bool whole) {
  verify_file(manifest, name, whole);
  for (const auto& [source, sha256] : manifest.files.at(name).made_from) verify_file(manifest, source, whole);
}

void verify_files(const Manifest& manifest, const std::function<void(const std::string&)>& each) {
  for (const auto& [name, entry] : manifest.files) {
    if (each) each(name);
    verify_file(manifest, name, true);
    const std::filesystem::path path = manifest.file(name);
    for (const auto& [source, made_from] : entry.made_from) {
      const auto found = manifest.files.find(source);
      if (found == manifest.files.end() || found->second.sha256 != made_from) {
        throw Error(path.string() + " was made from another " + source + " than the bundle holds: make it again");
      }
    }
  }
}

std::optional<std::string> why_bad(const Manifest& manifest) {
  if (manifest.files.count(kReport) == 0) return std::nullopt;
  std::ifstream file(manifest.folder / kReport, std::ios::binary);
  const Json report = Json::parse(file, nullptr, false);
  if (!report.is_object() || report.value("verdict", Json()) != "fail") return std::nullopt;
  const Json summary = report.value("summary", Json());
  return manifest.folder.string() + " was judged and found bad: " + (summary.is_string() ? summary.get<std::string>() : kReport);
}

}  // namespace blockexport
