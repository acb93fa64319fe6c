#pragma once

#include <filesystem>

namespace blockexport {

/// Hands pages of the files in `folder` that are mapped into this process back to the system; they are read again when
/// they are needed. A runtime that has repacked its weights maps the original still, and reads little of it. Does
/// nothing where the system cannot (only Linux can).
void release_mapped_files(const std::filesystem::path& folder);

}  // namespace blockexport
