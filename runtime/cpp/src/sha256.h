#pragma once

#include <filesystem>
#include <string>

namespace blockexport {

/// Hex SHA-256 (FIPS 180-4) of a file. Throws Error when it cannot be read.
std::string sha256_of(const std::filesystem::path& path);

/// Hex SHA-256 of a sample of a file: at most 256 of its pages of 4096 bytes, the first 16 and 240 spread evenly over the
/// rest, the last among them. A file of at most 1 MiB is taken whole. Throws Error when it cannot be read.
std::string sampled_sha256_of(const std::filesystem::path& path);

}  // namespace blockexport
