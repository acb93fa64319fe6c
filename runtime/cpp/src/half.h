#pragma once

#include <cstdint>

namespace blockexport {

/// IEEE 754 binary16 and bfloat16 by their bits; narrowing rounds to nearest even.
float float16_to_float(std::uint16_t bits);
std::uint16_t float_to_float16(float value);
float bfloat16_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat16(float value);

}  // namespace blockexport
