#include "blockexport/selftest.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "blockexport/error.h"
#include "safetensors.h"

namespace blockexport {
namespace {

constexpr const char* kGolden = "golden.safetensors";

void require(bool good, const Manifest& manifest, const std::string& what) {
  if (!good) throw Error((manifest.folder / kGolden).string() + " is damaged (" + what + "): export the bundle again");
}

std::size_t width_of(const Manifest& manifest) {
  return static_cast<std::size_t>(manifest.headless ? manifest.hidden_size : manifest.vocab_size);
}

}  // namespace

GoldenVectors read_golden(const Manifest& manifest) {
  if (manifest.files.count(kGolden) == 0) {
    throw Error(manifest.folder.string() + " has no " + kGolden + ": export it without --no-compare to have one");
  }
  const Safetensors file(manifest.file(kGolden));
  GoldenVectors golden;
  if (manifest.headless) {
    golden.embeds = file.floats("inputs_embeds");
  } else {
    golden.token_ids = file.int64s("input_ids");
  }
  golden.positions = file.int64s("positions");
  golden.logits = file.floats(manifest.headless ? "hidden_states" : "logits");
  golden.tolerance = file.floats("tolerance");
  const auto prefill = file.int64s("prefill");
  const auto rms = file.floats("rms_tolerance");
  require(prefill.size() == 1 && rms.size() == 1, manifest, "prefill and rms_tolerance are one number each");
  golden.prefill = prefill[0];
  golden.rms_tolerance = rms[0];

  const auto hidden = static_cast<std::size_t>(manifest.hidden_size);
  const std::size_t count = manifest.headless ? golden.embeds.size() / hidden : golden.token_ids.size();
  const std::size_t positions = golden.positions.size();
  require(golden.prefill >= 1 && static_cast<std::size_t>(golden.prefill) <= count, manifest, "prefill");
  require(positions > 0 && golden.tolerance.size() == positions, manifest, "tolerance");
  require(golden.logits.size() == positions * width_of(manifest), manifest, "logits");
  std::int64_t previous = manifest.last_logits_only ? golden.prefill - 2 : -1;
  for (const std::int64_t position : golden.positions) {
    require(position > previous && static_cast<std::size_t>(position) < count, manifest, "positions");
    previous = position;
  }
  return golden;
}

std::string SelftestResult::summary() const {
  std::ostringstream out;
  out.precision(3);
  out << (passed ? "passed" : "FAILED") << ": root mean square difference " << rms << " (limit " << rms_tolerance
      << "); largest at position " << worst_position << ": " << worst_difference << " (limit " << worst_tolerance << ")";
  return out.str();
}

namespace {

// Sums up the differences at the positions that one call covered.
class Comparison {
 public:
  Comparison(const GoldenVectors& golden, std::size_t width) : golden_(golden), width_(width) {}

  void add(const Logits& logits, std::int64_t first, std::int64_t count) {
    for (; next_ < golden_.positions.size() && golden_.positions[next_] < first + count; ++next_) {
      const std::int64_t back = first + count - golden_.positions[next_];  // from the end: last_logits_only has one
      compare(logits.at(0, logits.sequence_length - back));
    }
  }

  SelftestResult result() const {
    SelftestResult made = worst_;
    made.rms = std::sqrt(squares_ / static_cast<double>(golden_.positions.size() * width_));
    made.rms_tolerance = static_cast<double>(golden_.rms_tolerance);
    // Comparisons with NaN are false: written so that false means failed.
    made.passed = finite_ && made.rms <= made.rms_tolerance && made.worst_ratio <= 1.0;
    return made;
  }

 private:
  void compare(const std::vector<float>& values) {
    double largest = 0.0;
    for (std::size_t i = 0; i < width_; ++i) {
      const double difference =
          static_cast<double>(values.at(i)) - static_cast<double>(golden_.logits[next_ * width_ + i]);
      finite_ = finite_ && std::isfinite(difference);
      squares_ += difference * difference;
      largest = std::max(largest, std::fabs(difference));
    }
    const auto tolerance = static_cast<double>(golden_.tolerance[next_]);
    if (worst_.worst_position < 0 || largest / tolerance > worst_.worst_ratio) {
      worst_.worst_ratio = largest / tolerance;
      worst_.worst_position = golden_.positions[next_];
      worst_.worst_difference = largest;
      worst_.worst_tolerance = tolerance;
    }
  }

  const GoldenVectors& golden_;
  std::size_t width_, next_ = 0;
  double squares_ = 0.0;
  bool finite_ = true;
  SelftestResult worst_;
};

}  // namespace

SelftestResult replay_golden(Decoder& decoder, const GoldenVectors& golden) {
  const Manifest& manifest = decoder.manifest();
  const auto slice = [&](std::int64_t first, std::int64_t count, auto&& call) {
    if (manifest.headless) {
      const auto start = golden.embeds.begin() + first * manifest.hidden_size;
      const std::vector<float> embeds(start, start + count * manifest.hidden_size);
      return call(Inputs(embeds, manifest.hidden_size, 1));
    }
    const auto start = golden.token_ids.begin() + first;
    const std::vector<std::int64_t> ids(start, start + count);
    return call(Inputs(ids));
  };
  Comparison comparison(golden, width_of(manifest));
  decoder.reset();
  slice(0, golden.prefill, [&](const Inputs& inputs) { comparison.add(decoder.prefill(inputs), 0, golden.prefill); });
  for (std::int64_t position = golden.prefill; position <= golden.positions.back(); ++position) {
    slice(position, 1, [&](const Inputs& inputs) { comparison.add(decoder.step(inputs), position, 1); });
  }
  return comparison.result();
}

void check_capacity(Decoder& decoder) {
  const Manifest& manifest = decoder.manifest();
  const std::vector<std::int64_t> ids(1, 0), position(1, decoder.max_sequence_length());
  const std::vector<float> embeds(static_cast<std::size_t>(manifest.hidden_size), 0.0F);
  decoder.reset();
  try {
    decoder.forward(manifest.headless ? Inputs(embeds, manifest.hidden_size, 1) : Inputs(ids), position);
  } catch (const Error&) {
    return;
  }
  throw Error("a token was taken at position " + std::to_string(position[0]) + " of a cache with as many slots");
}

}  // namespace blockexport
