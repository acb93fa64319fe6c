// Compiled with -ffp-contract=off: a fused multiply-add would change bits.
#include "blockexport/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "blockexport/error.h"

namespace blockexport {
namespace {

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kUnderflow = -700.0;

// 1/13!, 1/12!, ..., 1/1!, 1.
constexpr std::array<double, 14> coefficients() {
  std::array<double, 14> made{};
  double factorial = 1.0;
  for (std::size_t n = 0; n < made.size(); ++n) {
    if (n > 0) factorial *= static_cast<double>(n);
    made[made.size() - 1 - n] = 1.0 / factorial;
  }
  return made;
}
constexpr auto kCoefficients = coefficients();

double exp_nonpositive(double x) {
  if (x < kUnderflow) return 0.0;
  const double k = std::floor(x * kLog2E + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double p = kCoefficients[0];
  for (std::size_t i = 1; i < kCoefficients.size(); ++i) p = p * r + kCoefficients[i];
  return std::ldexp(p, static_cast<int>(k));
}

// Logit and id in one integer whose order is descending logit, then ascending id.
std::uint64_t sort_key(float logit, std::size_t id) {
  logit += 0.0F;  // -0 becomes +0
  std::uint32_t bits;
  std::memcpy(&bits, &logit, sizeof bits);
  const std::uint32_t descending = (bits >> 31) != 0 ? bits : ~bits & 0x7FFFFFFFU;
  return std::uint64_t{descending} << 32 | static_cast<std::uint32_t>(id);
}

[[noreturn]] void refuse(const std::string& what) { throw Error(what); }

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options), state_(options.seed) {
  if (!(options.temperature >= 0.0 && options.temperature < HUGE_VAL)) {
    refuse("temperature is " + std::to_string(options.temperature) +
           " and must be 0 (greedy) or a positive number, such as 0.8");
  }
  if (options.top_k < 0) {
    refuse("top-k is " + std::to_string(options.top_k) + " and must be 0 (all tokens) or the number of candidates");
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    refuse("top-p is " + std::to_string(options.top_p) + " and must be in (0, 1]; 1 keeps every candidate");
  }
}

// SplitMix64; the upper 53 bits make the number.
double Sampler::next_uniform() {
  state_ += 0x9E3779B97F4A7C15U;
  std::uint64_t bits = state_;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBU;
  bits ^= bits >> 31;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::int64_t Sampler::sample(const std::vector<float>& logits) {
  if (logits.empty()) refuse("there are no logits to choose from");
  std::size_t best = 0;
  bool finite = true;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    finite = finite && !std::isnan(logits[i]) && logits[i] < HUGE_VALF;
    if (logits[i] > logits[best]) best = i;
  }
  if (!finite || logits[best] == -HUGE_VALF) {
    refuse("the logits hold NaN or infinity, or nothing else than -infinity, and no token can be chosen from that: "
           "`blockexport compare` shows where the model goes wrong");
  }
  if (options_.temperature == 0.0) return static_cast<std::int64_t>(best);

  std::vector<std::uint64_t> keys(logits.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = sort_key(logits[i], i);
  const auto top_k = static_cast<std::size_t>(options_.top_k);
  if (top_k > 0 && top_k < keys.size()) {
    std::nth_element(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(top_k - 1), keys.end());
    keys.resize(top_k);
  }
  std::sort(keys.begin(), keys.end());
  const auto id = [&keys](std::size_t i) { return static_cast<std::size_t>(keys[i] & 0xFFFFFFFFU); };

  std::vector<double> sums(keys.size());
  const auto greatest = static_cast<double>(logits[id(0)]);
  double sum = 0.0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double weight = exp_nonpositive((static_cast<double>(logits[id(i)]) - greatest) / options_.temperature);
    sum = i == 0 ? weight : sum + weight;
    sums[i] = sum;
  }
  const auto enough = std::lower_bound(sums.begin(), sums.end(), options_.top_p * sums.back());
  const auto count = std::min(static_cast<std::size_t>(enough - sums.begin()) + 1, sums.size());
  sums.resize(count);
  const double drawn = next_uniform() * sums.back();
  const auto chosen = static_cast<std::size_t>(std::upper_bound(sums.begin(), sums.end(), drawn) - sums.begin());
  return static_cast<std::int64_t>(id(std::min(chosen, count - 1)));
}

}  // namespace blockexport
