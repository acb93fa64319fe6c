#pragma once

#include <filesystem>
#include <string>

namespace blockexport {

/// Hex SHA-256 (FIPS 180-4) of a file. Throws Error when it cannot be read.
std::string sha256_of(const std::filesystem::path& path);

}  // namespace blockexport
