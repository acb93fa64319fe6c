#pragma once

#include <filesystem>

namespace blockexport {

/// Hands pages of the files in `folder` that are mapped into this process back to the system; they are read again when
/// they are needed. A runtime that has repacked its weights maps the original still, and reads little of it. Does
/// nothing where the system cannot (only Linux can).
void release_mapped_files(const std::filesystem::path& folder);

/// Hands memory that was freed back to the system: a runtime that repacks its weights has had all of them twice. Does
/// nothing where the C library cannot (only glibc can).
void release_free_memory();

}  // namespace blockexport
