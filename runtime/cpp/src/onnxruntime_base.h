#pragma once

#include <onnxruntime_cxx_api.h>

#include <string>
#include <vector>

#include "backends.h"

namespace blockexport {

/// What the decoders on a processor and on a GPU share: the session, its interface, and numbers of slots.
///
/// Attention looks at every slot that is bound, so the caches begin with few slots and double when a call needs more: a
/// step costs what its context does, and not what M does. What is judged has all M of them from the start.
class OnnxRuntimeBase : public Decoder {
 protected:
  /// Opens and checks the session. A step of one that `records` can be a CUDA graph.
  OnnxRuntimeBase(Manifest from, const DecoderOptions& options);

  std::int64_t first_slots() const;
  /// How many slots there are to be after `held` where `wanted` are needed.
  std::int64_t doubled(std::int64_t held, std::int64_t wanted) const;
  /// Slots that a call writes to.
  std::int64_t needed(const std::vector<std::int64_t>& position_ids) const;
  std::vector<std::int64_t> cache_shape(std::int64_t slots) const;
  /// Bytes of one row's slots of one head, of which a cache has `planes()`.
  std::size_t plane_bytes(std::int64_t slots) const;
  std::size_t planes() const;
  Ort::Value tensor(const Ort::MemoryInfo& where, void* data, const std::vector<std::int64_t>& shape, DType dtype) const;
  /// The first input's values and shape in the artifact's type; valid until the next call.
  void* first_input(const Inputs& inputs, std::vector<std::int64_t>& shape);
  std::vector<std::int64_t> output_shape(std::int64_t length) const;
  void run_session(const Ort::RunOptions& options, const Ort::IoBinding& binding);

  static constexpr std::size_t kFirstCache = 2;  // after ids (or embeddings) and positions

  Ort::Env environment_;
  std::string model_;  // the file's name
  bool grows_, records_ = false;
  Ort::Session session_;
  Ort::MemoryInfo host_;

 private:
  static Ort::Env quiet_environment();
  Ort::Session open_session(const DecoderOptions& options);
  Ort::Session load(const DecoderOptions& options);
  void check_interface();
  void declare_slots(DeclaredPort& port) const;

  std::vector<std::uint16_t> half_inputs_;
};

/// Bytes of a tensor.
std::size_t bytes_of(const std::vector<std::int64_t>& shape, DType dtype);

/// The file that a backend runs.
std::string onnx_file(const std::string& backend);

/// One on a GPU, where weights and caches stay; steps are CUDA graphs where ONNX Runtime can record them.
std::unique_ptr<Decoder> open_onnxruntime_on_gpu(Manifest manifest, const DecoderOptions& options);

}  // namespace blockexport
