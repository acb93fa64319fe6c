#pragma once

#include <cstdint>
#include <vector>

namespace blockexport {

/// How a token is chosen: greedily at temperature 0 (the default), drawn otherwise. `top_k` 0 and `top_p` 1 leave the
/// candidates alone.
struct SamplingOptions {
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::uint64_t seed = 0;
};

/// Chooses tokens one after the other. The same seed and logits give the same tokens as blockexport's Python sampler,
/// bit for bit, on any machine with IEEE 754 doubles; runtime/text/sampling.py defines each operation.
class Sampler {
 public:
  /// Throws Error when an option is out of its range.
  explicit Sampler(const SamplingOptions& options = {});

  /// The next token id from the logits of one position.
  /// Throws Error when a logit is NaN or +infinity, or all are -infinity.
  std::int64_t sample(const std::vector<float>& logits);

 private:
  double next_uniform();

  SamplingOptions options_;
  std::uint64_t state_;
};

}  // namespace blockexport
