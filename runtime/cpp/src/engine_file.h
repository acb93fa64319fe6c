#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "blockexport/manifest.h"

namespace blockexport {

/// Shapes that a set of an engine's kernels was chosen for: (least, usual, most).
struct EngineProfile {
  std::array<std::int64_t, 3> batch_size, sequence_length;

  bool takes(std::int64_t rows, std::int64_t length) const {
    return batch_size[0] <= rows && rows <= batch_size[2] && sequence_length[0] <= length && length <= sequence_length[2];
  }
};

/// An engine of the bundle as its manifest describes it.
struct EngineFile {
  std::string name, backend, version;
  std::vector<std::string> compute_capabilities;
  std::vector<EngineProfile> profiles;
  bool ampere_plus = false, version_compatible = false, stripped = false;
};

/// All engines of a bundle, by name. Throws Error when the manifest's list is damaged.
std::vector<EngineFile> engines_of(const Manifest& manifest);

/// The bundle's engine of `backend` for a GPU of compute capability `capability` (such as "8.9").
/// Throws Error naming what there is and what would be needed.
EngineFile choose_engine(const Manifest& manifest, const std::string& backend, const std::string& capability);

/// Throws Error when the engine's file is missing, cut short, of another graph or weights, without weights, or of a
/// TensorRT version that `version` does not load. Contents are compared by verify_files.
std::filesystem::path check_engine(const Manifest& manifest, const EngineFile& engine, const std::string& version);

}  // namespace blockexport
