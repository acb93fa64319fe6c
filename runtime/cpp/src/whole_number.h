#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace blockexport {

/// Whole numbers of a JSON file. The library's own conversions take 2.5 for 2, and 1e54 for whatever the processor makes
/// of it; these throw its exception.
inline std::int64_t whole(const nlohmann::json& value) {
  return value.get_ref<const nlohmann::json::number_integer_t&>();
}

/// The same from 0 on.
inline std::uint64_t natural(const nlohmann::json& value) {
  return value.get_ref<const nlohmann::json::number_unsigned_t&>();
}

}  // namespace blockexport
