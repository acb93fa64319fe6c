#include <map>
#include <optional>
#include <utility>

#include "cuda_library.h"
#include "onnxruntime_base.h"

namespace blockexport {
namespace {

constexpr const char* kGraph = "gpu_graph_id";  // of a run: the CUDA graph that it records or launches
constexpr const char* kNoGraph = "-1";

// Weights and caches stay on the GPU. What goes in and comes out of a step lies at fixed addresses, a set for each number
// of slots, so that ONNX Runtime records the step once and launches it as a whole from then on.
class OnnxRuntimeGpuDecoder final : public OnnxRuntimeBase {
 public:
  OnnxRuntimeGpuDecoder(Manifest from, const DecoderOptions& options)
      : OnnxRuntimeBase(std::move(from), options),
        cuda_(options.device),
        device_("Cuda", OrtDeviceAllocator, options.device, OrtMemTypeDefault),
        allocator_(session_, device_) {
    reset();
  }

 private:
  // A tensor of the GPU.
  struct Tensor {
    Ort::MemoryAllocation memory;
    Ort::Value value;
    void* data() { return memory.get(); }
    std::size_t bytes() { return memory.size(); }
  };

  // What a call reads and writes, bound.
  struct Call {
    Ort::IoBinding binding;
    Tensor given, positions, output;
    std::string graph;
  };

  using Caches = std::vector<Tensor>;

  Tensor on_gpu(const std::vector<std::int64_t>& shape, DType dtype) {
    Ort::MemoryAllocation memory = allocator_.GetAllocation(bytes_of(shape, dtype));
    Ort::Value value = tensor(device_, memory.get(), shape, dtype);
    return {std::move(memory), std::move(value)};
  }

  // Zeroed caches; asked for again, those that the graphs of their steps know.
  Caches& caches_of(std::int64_t slots) {
    Caches& found = caches_[slots];
    while (found.size() + kFirstCache < manifest().inputs.size()) {
      found.push_back(on_gpu(cache_shape(slots), manifest().dtype));
    }
    for (Tensor& cache : found) cuda_.clear(cache.data(), cache.bytes());
    return found;
  }

  void allocate(std::int64_t batch_size) override {
    if (batch_size != rows_) steps_.clear(), caches_.clear();  // those of another number of rows
    rows_ = batch_size;
    slots_ = first_slots();
    caches_of(slots_);
  }

  // Has at least `slots` slots, with what is in those that there are.
  void make_room(std::int64_t slots) {
    if (slots <= slots_) return;
    const std::size_t held = plane_bytes(slots_);
    Caches& smaller = caches_.at(slots_);
    slots_ = doubled(slots_, slots);
    Caches& larger = caches_of(slots_);
    for (std::size_t i = 0; i < larger.size(); ++i) {
      cuda_.copy(larger[i].data(), plane_bytes(slots_), smaller[i].data(), held, held, planes());
    }
  }

  Logits run(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) override {
    const std::int64_t length = inputs.count / batch_size();
    make_room(needed(position_ids));
    std::vector<std::int64_t> shape = {batch_size(), length};
    const void* const given = first_input(inputs, shape);
    if (length == 1 && steps_.count(slots_) == 0) steps_.emplace(slots_, bound(shape, 1, std::to_string(++graphs_)));
    std::optional<Call> prompt;
    if (length != 1) prompt = bound(shape, length, kNoGraph);
    Call& call = length == 1 ? steps_.at(slots_) : *prompt;
    cuda_.copy(call.given.data(), call.given.bytes(), given, call.given.bytes(), call.given.bytes());
    const std::size_t bytes = call.positions.bytes();
    cuda_.copy(call.positions.data(), bytes, position_ids.data(), bytes, bytes);
    Ort::RunOptions options;
    if (records_) options.AddConfigEntry(kGraph, call.graph.c_str());
    run_session(options, call.binding);
    return brought(call.output, length);
  }

  Call bound(const std::vector<std::int64_t>& shape, std::int64_t length, std::string graph) {
    Call made{Ort::IoBinding(session_), on_gpu(shape, manifest().inputs[0].dtype),
              on_gpu({batch_size(), length}, DType::kInt64), on_gpu(output_shape(length), manifest().dtype),
              std::move(graph)};
    made.binding.BindInput(manifest().inputs[0].name.c_str(), made.given.value);
    made.binding.BindInput(manifest().inputs[1].name.c_str(), made.positions.value);
    made.binding.BindOutput(manifest().outputs[0].name.c_str(), made.output.value);
    const Caches& caches = caches_.at(slots_);
    for (std::size_t i = 0; i < caches.size(); ++i) {
      // Past and present are one buffer, so that the graph updates it in place.
      made.binding.BindInput(manifest().inputs[i + kFirstCache].name.c_str(), caches[i].value);
      made.binding.BindOutput(manifest().outputs[i + 1].name.c_str(), caches[i].value);
    }
    return made;
  }

  // The outputs that are wanted, on the host.
  Logits brought(Tensor& output, std::int64_t length) {
    const std::vector<std::int64_t> shape = output_shape(length);
    const std::int64_t positions = last_alone() ? 1 : shape[1];
    const std::size_t pitch = bytes_of({shape[1], shape[2]}, manifest().dtype);
    const std::size_t wanted = bytes_of({positions, shape[2]}, manifest().dtype);
    output_.resize(wanted * static_cast<std::size_t>(shape[0]));
    const auto* const from = static_cast<const std::byte*>(output.data()) + (pitch - wanted);
    cuda_.copy(output_.data(), wanted, from, pitch, wanted, static_cast<std::size_t>(shape[0]));
    return {output_.data(), manifest().dtype, shape[0], positions, shape[2]};
  }

  CudaLibrary cuda_;
  Ort::MemoryInfo device_;
  Ort::Allocator allocator_;
  std::int64_t rows_ = 0, slots_ = 0, graphs_ = 0;
  std::map<std::int64_t, Caches> caches_;  // by their slots
  std::map<std::int64_t, Call> steps_;     // by the slots of their caches
  std::vector<std::byte> output_;
};

}  // namespace

std::unique_ptr<Decoder> open_onnxruntime_on_gpu(Manifest manifest, const DecoderOptions& options) {
  return std::make_unique<OnnxRuntimeGpuDecoder>(std::move(manifest), options);
}

}  // namespace blockexport
