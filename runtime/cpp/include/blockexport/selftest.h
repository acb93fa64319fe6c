#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "blockexport/decoder.h"

namespace blockexport {

/// The bundle's `golden.safetensors`: one sequence, and the reference's logits at some of its positions.
struct GoldenVectors {
  std::vector<std::int64_t> token_ids;   ///< the sequence; empty for a headless model
  std::vector<float> embeds;             ///< [sequence, hidden_size] of a headless model
  std::int64_t prefill = 0;              ///< tokens of the first call; the others follow one by one
  std::vector<std::int64_t> positions;   ///< where logits are known, ascending
  std::vector<float> logits;             ///< [positions, width], float64 PyTorch on the source checkpoint, rounded
  std::vector<float> tolerance;          ///< largest difference allowed at each position
  float rms_tolerance = 0.0F;            ///< root mean square allowed over all of them
};

/// Reads a bundle's golden vectors. Throws Error when there are none or they are damaged.
GoldenVectors read_golden(const Manifest& manifest);

/// How far a decoder is from the golden vectors.
struct SelftestResult {
  bool passed = false;
  double rms = 0.0;                 ///< over all positions and logits
  double rms_tolerance = 0.0;
  double worst_ratio = 0.0;         ///< largest difference over its position's tolerance; above 1 fails
  std::int64_t worst_position = -1;
  double worst_difference = 0.0;
  double worst_tolerance = 0.0;

  /// One sentence for people.
  std::string summary() const;
};

/// Replays the golden vectors: the prefill, then every step. NaN and infinity always fail.
SelftestResult replay_golden(Decoder& decoder, const GoldenVectors& golden);

/// Checks that a token past the last cache slot is refused. Throws Error when it is not.
void check_capacity(Decoder& decoder);

}  // namespace blockexport
