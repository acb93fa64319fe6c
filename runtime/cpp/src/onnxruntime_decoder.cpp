#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "blockexport/error.h"
#include "onnxruntime_base.h"
#include "resident.h"

namespace blockexport {
namespace {

/// Zeroed memory, aligned for vector instructions. Pages are taken by the system when they are first written.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes), memory_(std::calloc(bytes + kAlignment, 1)) {
    if (memory_ == nullptr) {
      throw Error("a cache tensor of " + std::to_string(bytes) +
                  " bytes was refused memory: take fewer rows, or a smaller max_sequence_length");
    }
    const auto address = reinterpret_cast<std::uintptr_t>(memory_);
    start_ = static_cast<std::byte*>(memory_) + (kAlignment - address % kAlignment) % kAlignment;
  }
  Buffer(Buffer&& other) noexcept
      : bytes_(other.bytes_), memory_(std::exchange(other.memory_, nullptr)), start_(other.start_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
    std::swap(start_, other.start_);
    return *this;
  }
  ~Buffer() { std::free(memory_); }

  void* data() const { return start_; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::size_t bytes_;
  void* memory_;
  std::byte* start_;
};

class OnnxRuntimeDecoder final : public OnnxRuntimeBase {
 public:
  OnnxRuntimeDecoder(Manifest from, const DecoderOptions& options) : OnnxRuntimeBase(std::move(from), options) {
    // The weights were repacked; what stays mapped of them is an embedding of which a step reads a row.
    if (!options.low_memory) release_mapped_files(manifest().folder);
    reset();
  }

 private:
  // Has at least `slots` slots, with what is in those that there are.
  void make_room(std::int64_t slots) {
    if (slots <= slots_) return;
    const std::size_t held = plane_bytes(slots_);
    slots_ = doubled(slots_, slots);
    const std::size_t wanted = plane_bytes(slots_);
    for (Buffer& cache : caches_) {
      Buffer larger(planes() * wanted);
      for (std::size_t i = 0; i < planes(); ++i) {
        std::memcpy(static_cast<std::byte*>(larger.data()) + i * wanted,
                    static_cast<const std::byte*>(cache.data()) + i * held, held);
      }
      cache = std::move(larger);
    }
    bind_caches();
  }

  void allocate(std::int64_t) override {
    slots_ = first_slots();
    caches_.clear();
    for (std::size_t i = kFirstCache; i < manifest().inputs.size(); ++i) caches_.emplace_back(planes() * plane_bytes(slots_));
    bind_caches();
  }

  // Past and present are one buffer, so that the graph updates it in place.
  void bind_caches() {
    binding_ = Ort::IoBinding(session_);
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      const auto value = tensor(host_, caches_[i].data(), cache_shape(slots_), manifest().dtype);
      binding_.BindInput(manifest().inputs[i + kFirstCache].name.c_str(), value);
      binding_.BindOutput(manifest().outputs[i + 1].name.c_str(), value);
    }
  }

  Logits run(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) override {
    const std::int64_t length = inputs.count / batch_size();
    make_room(needed(position_ids));
    std::vector<std::int64_t> shape = {batch_size(), length};
    binding_.BindInput(manifest().inputs[1].name.c_str(),
                       tensor(host_, const_cast<std::int64_t*>(position_ids.data()), shape, DType::kInt64));
    void* const given = first_input(inputs, shape);
    binding_.BindInput(manifest().inputs[0].name.c_str(), tensor(host_, given, shape, manifest().inputs[0].dtype));
    const std::vector<std::int64_t> given_back = output_shape(length);
    output_.resize(bytes_of(given_back, manifest().dtype));
    binding_.BindOutput(manifest().outputs[0].name.c_str(),
                        tensor(host_, output_.data(), given_back, manifest().dtype));
    run_session(Ort::RunOptions{nullptr}, binding_);
    return {output_.data(), manifest().dtype, given_back[0], given_back[1], given_back[2]};
  }

  std::int64_t slots_ = 0;  // that are bound
  Ort::IoBinding binding_{nullptr};
  std::vector<Buffer> caches_;
  std::vector<std::byte> output_;
};

/// Of 1.x; a large number of any later major version.
int minor_version() {
  const std::string version = Ort::GetVersionString();
  return version.rfind("1.", 0) == 0 ? std::atoi(version.c_str() + 2) : 1000;
}

/// What to add where this ONNX Runtime is too old for any bundle (TensorScatter has kernels from 1.25 on), or lacks CUDA.
std::string needed(const std::string& provider) {
  const bool old = minor_version() < 25;
  if (!old && provider == "cpu") return "";
  if (!old) return ". Link the library of onnxruntime-gpu, and install the CUDA libraries that it names, or leave out --device";
  return ". A bundle needs ONNX Runtime 1.25 or later: link the library of the Python wheel (onnxruntime/capi)";
}

}  // namespace

std::string onnx_file(const std::string& backend) {
  return backend == "onnxruntime-nonpad" ? "model.nonpad.onnx" : "model.onnx";
}

std::unique_ptr<Decoder> open_onnxruntime(Manifest manifest, const DecoderOptions& options) {
  const std::string name = onnx_file(options.backend), artifact = (manifest.folder / name).string();
  verify_with_sources(manifest, name, options.verify_weights);
  if (options.provider == "cuda" && name != onnx_file("onnxruntime") && minor_version() < 28) {
    throw Error("ONNX Runtime " + Ort::GetVersionString() + " does not run attention without a mask on a GPU, which needs "
                "1.28 or later: link a newer library, or take the backend onnxruntime");
  }
  try {
    if (options.provider != "cpu") return open_onnxruntime_on_gpu(std::move(manifest), options);
    return std::make_unique<OnnxRuntimeDecoder>(std::move(manifest), options);
  } catch (const Ort::Exception& error) {
    std::string said = error.what();
    while (!said.empty() && (said.back() == '.' || said.back() == '\n')) said.pop_back();
    throw Error("ONNX Runtime " + Ort::GetVersionString() + " does not load " + artifact + " on " + options.provider +
                ": " + said + needed(options.provider));
  }
}

}  // namespace blockexport
