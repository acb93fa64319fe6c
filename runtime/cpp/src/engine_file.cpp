#include "engine_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "blockexport/error.h"

namespace blockexport {
namespace {

using Json = nlohmann::json;

std::array<std::int64_t, 3> sizes(const Json& list) { return {list.at(0), list.at(1), list.at(2)}; }

EngineFile from_json(const std::string& name, const Json& entry) {
  EngineFile made;
  made.name = name;
  made.backend = entry.at("backend");
  made.version = entry.at("version");
  made.compute_capabilities = entry.at("compute_capabilities").get<std::vector<std::string>>();
  for (const Json& profile : entry.at("profiles")) {
    made.profiles.push_back({sizes(profile.at("batch_size")), sizes(profile.at("sequence_length"))});
  }
  const Json& options = entry.at("options");
  const auto is_on = [&options](const char* key) { return options.contains(key) && options.at(key) == true; };
  made.ampere_plus = options.contains("hardware_compatibility") && options.at("hardware_compatibility") == "ampere-plus";
  made.version_compatible = is_on("version_compatible");
  made.stripped = is_on("strip_weights");
  return made;
}

std::vector<int> numbers(const std::string& version) {
  std::vector<int> parts;
  std::istringstream stream(version);
  for (std::string part; std::getline(stream, part, '.');) {
    if (!part.empty() && part.size() < 10 && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      parts.push_back(std::stoi(part));
    }
  }
  return parts;
}

bool serves(const EngineFile& engine, const std::string& capability) {
  if (engine.ampere_plus) return numbers(capability) >= std::vector<int>{8, 0};
  const auto& list = engine.compute_capabilities;
  return std::find(list.begin(), list.end(), capability) != list.end();
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

}  // namespace

std::vector<EngineFile> engines_of(const Manifest& manifest) {
  const std::filesystem::path path = manifest.folder / "manifest.json";
  try {
    std::ifstream file(path, std::ios::binary);
    const Json data = Json::parse(file);
    std::vector<EngineFile> engines;
    if (!data.contains("engines")) return engines;
    for (const auto& [name, entry] : data.at("engines").items()) engines.push_back(from_json(name, entry));
    return engines;
  } catch (const Json::exception& error) {
    throw Error(path.string() + ": the list of engines is damaged (" + error.what() + "): build the engine again");
  }
}

EngineFile choose_engine(const Manifest& manifest, const std::string& backend, const std::string& capability) {
  const std::string bundle = manifest.folder.string(), build = "blockexport trt " + bundle + " --backend " + backend;
  std::vector<std::string> built_for;
  for (const EngineFile& engine : engines_of(manifest)) {
    if (engine.backend != backend) continue;
    if (serves(engine, capability)) return engine;
    built_for.insert(built_for.end(), engine.compute_capabilities.begin(), engine.compute_capabilities.end());
  }
  if (built_for.empty()) throw Error(bundle + " holds no " + backend + " engine: `" + build + "` builds one");
  throw Error(bundle + " holds " + backend + " engines for compute capability " + joined(built_for) +
              " and this GPU has " + capability + ": `" + build + "` builds one for it");
}

std::filesystem::path check_engine(const Manifest& manifest, const EngineFile& engine, const std::string& version) {
  const std::filesystem::path path = manifest.file(engine.name);
  const std::string again = "build it again with `blockexport trt`";
  const FileEntry& listed = manifest.files.at(engine.name);
  if (std::filesystem::file_size(path) != listed.bytes) {
    throw Error(path.string() + " has " + std::to_string(std::filesystem::file_size(path)) +
                " bytes and the manifest says " + std::to_string(listed.bytes) + ": " + again + ", or copy it whole");
  }
  for (const auto& [source, sha256] : listed.made_from) {
    const auto found = manifest.files.find(source);
    if (found == manifest.files.end() || found->second.sha256 != sha256) {
      throw Error(path.string() + " was built from another " + source + " than the bundle holds: " + again);
    }
  }
  if (engine.stripped) {
    throw Error(path.string() + " was built with --strip-weights, which this program cannot fill: " + again +
                " without that option");
  }
  const bool loads = version == engine.version || (engine.version_compatible && numbers(version) >= numbers(engine.version));
  if (!loads) {
    throw Error(path.string() + " was built by " + engine.backend + " " + engine.version + " and this program has " +
                version + ": " + again + ", or use that version");
  }
  return path;
}

}  // namespace blockexport
