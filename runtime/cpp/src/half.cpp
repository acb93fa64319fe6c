#include "half.h"

#include <cmath>
#include <cstring>

namespace blockexport {
namespace {

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// `value` shifted right by `shift`, rounded to nearest even.
std::uint32_t rounded_shift(std::uint32_t value, unsigned shift) {
  const std::uint32_t kept = value >> shift, dropped = value & ((1U << shift) - 1), half = 1U << (shift - 1);
  return kept + (dropped > half || (dropped == half && (kept & 1U) != 0) ? 1U : 0U);
}

}  // namespace

float float16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1FU, fraction = bits & 0x3FFU;
  if (exponent == 0x1F) return float_of(sign | 0x7F800000U | fraction << 13);
  if (exponent != 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = std::ldexp(static_cast<float>(fraction), -24);
  return sign != 0 ? -small : small;
}

std::uint16_t float_to_float16(float value) {
  const std::uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t out;
  if (magnitude > 0x7F800000U) {
    out = 0x7E00U;  // NaN
  } else if (magnitude >= 0x47800000U) {
    out = 0x7C00U;  // 65536 and more
  } else if (magnitude >= 0x38800000U) {
    out = rounded_shift(magnitude - (112U << 23), 13);  // may carry into infinity, as it must
  } else if (magnitude < 0x33000000U) {
    out = 0;  // less than half of the smallest subnormal
  } else {
    out = rounded_shift((magnitude & 0x7FFFFFU) | 0x800000U, 126 - (magnitude >> 23));
  }
  return static_cast<std::uint16_t>(sign | out);
}

float bfloat16_to_float(std::uint16_t bits) { return float_of(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t float_to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7FC0U;
  return static_cast<std::uint16_t>(rounded_shift(bits_of(value), 16));
}

}  // namespace blockexport
