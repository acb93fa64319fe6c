#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

namespace blockexport {

/// Hands pages of the files in `folder` that are mapped into this process back to the system; they are read again when
/// they are needed. A runtime that has repacked its weights maps the original still, and reads little of it. Does
/// nothing where the system cannot (only Linux can).
void release_mapped_files(const std::filesystem::path& folder);

/// Hands memory that was freed back to the system: a runtime that repacks its weights has had all of them twice. Does
/// nothing where the C library cannot (only glibc can).
void release_free_memory();

/// Memory of this process that no file backs: addresses of the first byte, and of the one after the last, ascending.
using Ranges = std::vector<std::pair<std::uintptr_t, std::uintptr_t>>;
Ranges own_memory();

/// Moves what this process got since into huge pages: a step reads all weights, and in pages of 4 KiB it waits for the
/// page table as well. Values and addresses stay. Goes on for no longer than `seconds`, and does nothing where the system
/// cannot (only Linux can, from 6.1 on).
void move_into_huge_pages(const Ranges& before, double seconds);

}  // namespace blockexport
