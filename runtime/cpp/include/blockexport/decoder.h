#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "blockexport/manifest.h"

namespace blockexport {

/// What a call gave: logits (or hidden states) of shape [batch_size, sequence_length, width], in the artifact's own
/// type. A view into the decoder: valid until its next call.
struct Logits {
  const void* data;
  DType dtype;
  std::int64_t batch_size, sequence_length, width;

  /// The values at one position of one row, as float32. Throws Error outside of the shape.
  std::vector<float> at(std::int64_t row, std::int64_t position) const;
  /// Those of a row's last position.
  std::vector<float> last(std::int64_t row = 0) const { return at(row, sequence_length - 1); }
};

/// Inputs of one call, [batch_size, sequence_length] tokens one row after the other: ids, or embeddings of a headless
/// model ([batch_size, sequence_length, hidden_size], float32). Only points at them: they must outlive the call.
struct Inputs {
  Inputs(const std::vector<std::int64_t>& token_ids, std::int64_t rows = 1)
      : ids(token_ids.data()), count(static_cast<std::int64_t>(token_ids.size())), batch_size(rows) {}
  Inputs(const std::vector<float>& embeddings, std::int64_t hidden_size, std::int64_t rows)
      : embeds(embeddings.data()),
        count(hidden_size > 0 ? static_cast<std::int64_t>(embeddings.size()) / hidden_size : 0),
        width(hidden_size),
        batch_size(rows) {}

  const std::int64_t* ids = nullptr;
  const float* embeds = nullptr;
  std::int64_t count;  ///< tokens of all rows
  std::int64_t width = 0;
  std::int64_t batch_size;
};

/// A loaded decoder with its static cache of M slots per row. A token's position is its slot.
///
/// One object serves one thread at a time; different objects are independent of each other.
class Decoder {
 public:
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const Manifest& manifest() const { return manifest_; }
  /// M, cache slots per row.
  std::int64_t max_sequence_length() const { return manifest_.max_sequence_length; }
  std::int64_t batch_size() const { return static_cast<std::int64_t>(lengths_.size()); }
  /// Filled slots of each row.
  const std::vector<std::int64_t>& lengths() const { return lengths_; }
  /// Slots that are left in the fullest row.
  std::int64_t room() const;
  /// What to do about an input called `what` that needs `slots` slots, more than there are: a clause.
  std::string room_for(const std::string& what, std::int64_t slots) const;

  /// Empties the cache and gives it `batch_size` rows.
  void reset(std::int64_t batch_size = 1);

  /// Forgets what every row holds behind its first `slots`: no position sees that before it is written again.
  /// Throws Error when a row holds less.
  void forget_after(std::int64_t slots);

  /// Appends a chunk to every row: the prompt at first, further chunks of it later. `lengths` are the valid tokens of
  /// each row when shorter ones are padded on the right; empty means all. Logits of padding mean nothing; an artifact of
  /// last_logits_only gives those of each row's last valid token.
  /// Throws Error when the chunk, padding included, does not fit after what is cached.
  Logits prefill(const Inputs& inputs, const std::vector<std::int64_t>& lengths = {});

  /// The same where only the logits after each row's last token are wanted: [batch_size, 1, width], or all of them
  /// where copying the others costs nothing.
  Logits prefill_last(const Inputs& inputs);

  /// Appends one token to every row.
  Logits step(const Inputs& inputs);

  /// Runs at explicit positions [batch_size, sequence_length], which count up by one along each row, and leaves lengths()
  /// alone. With last_logits_only they do so to the row's last token, and padding has any position that is not higher.
  /// Throws Error when a row would be written past its last slot, or shapes disagree.
  Logits forward(const Inputs& inputs, const std::vector<std::int64_t>& position_ids);

 protected:
  /// Allocates nothing: a backend calls reset() when it is ready.
  explicit Decoder(Manifest manifest);

  /// Makes zeroed caches of `batch_size` rows.
  virtual void allocate(std::int64_t batch_size) = 0;
  /// Runs the artifact on inputs that were checked.
  virtual Logits run(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) = 0;
  /// Whether prefill_last asks.
  bool last_alone() const { return last_alone_; }

 private:
  void check(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) const;

  Manifest manifest_;
  std::vector<std::int64_t> lengths_;
  bool last_alone_ = false;
};

/// How a bundle is opened. A field that a backend has no use for must keep its default.
struct DecoderOptions {
  std::string backend;             ///< one of backends(); empty takes the first of them
  int threads = 0;                 ///< inside an operator (onnxruntime); 0 leaves the choice to the runtime
  bool low_memory = false;         ///< map the weights instead of repacking them (onnxruntime): slower steps
  bool exact = false;              ///< run the file as it is judged (onnxruntime): products by quantised weights in the
                                   ///< declared type, all M cache slots from the start. By default activations are
                                   ///< rounded to 8 bits first, which is several times as fast, and there are as many
                                   ///< slots as the context needs
  std::string provider = "cpu";    ///< `cpu` or `cuda` (onnxruntime, aoti), `tensorrt` (onnxruntime)
  int device = 0;                  ///< which GPU
  std::int64_t max_sequence_length = 0;  ///< M, when other than the bundle's: at most the rows of its RoPE table
  bool verify_weights = false;     ///< read every file that is run whole, and not a sample of its pages, for its SHA-256
};

/// Sets provider and GPU as `cpu`, `cuda` or `cuda:N` says. Throws Error when it is none of these.
void choose_device(DecoderOptions& options, const std::string& name);

/// The backends this library was built with: of `onnxruntime`, `onnxruntime-nonpad` (the bundle's graph without a mask),
/// `aoti`, `tensorrt`, `tensorrt-rtx`.
std::vector<std::string> backends();

/// Opens the bundle in `bundle` with an empty cache of one row.
/// Throws Error: no bundle, a backend that is not built in, an artifact that does not fit the manifest or the machine, a
/// file that is not the one the manifest lists.
std::unique_ptr<Decoder> open_decoder(const std::filesystem::path& bundle, const DecoderOptions& options = {});

}  // namespace blockexport
