#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "backends.h"
#include "blockexport/error.h"
#include "half.h"
#include "redeclare.h"
#include "resident.h"

namespace blockexport {
namespace {

constexpr const char* kModel = "model.onnx";
constexpr std::int64_t kFirstSlots = 128;  // bound at first, or M where that is less

ONNXTensorElementDataType element_type(DType dtype) {
  switch (dtype) {
    case DType::kInt64: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case DType::kInt32: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case DType::kFloat32: return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case DType::kFloat16: return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    default: return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
  }
}

std::string type_name(ONNXTensorElementDataType type) {
  for (const DType known : {DType::kInt64, DType::kInt32, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (element_type(known) == type) return name_of(known);
  }
  return "ONNX element type " + std::to_string(type);
}

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

// Attention looks at every slot that is bound, so on a processor the caches begin with few slots and double when a call
// needs more: a step costs what its context does, and not what M does. What is judged has all M of them from the start.
class OnnxRuntimeDecoder final : public Decoder {
 public:
  OnnxRuntimeDecoder(Manifest from, const DecoderOptions& options)
      : Decoder(std::move(from)),
        environment_(quiet_environment()),
        on_host_(options.provider == "cpu"),
        grows_(on_host_ && !options.exact),
        session_(open_session(environment_, manifest(), options, grows_)),
        device_(options.provider == "cpu" ? "Cpu" : "Cuda", OrtDeviceAllocator, options.device, OrtMemTypeDefault),
        host_(Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault)) {
    check_interface();
    // The weights were repacked; what stays mapped of them is an embedding of which a step reads a row.
    if (on_host_ && !options.low_memory) release_mapped_files(manifest().folder);
    reset();
  }

 private:
  /// Without telemetry, which some builds send by themselves; errors arrive as exceptions and are not logged as well.
  static Ort::Env quiet_environment() {
    Ort::Env made(ORT_LOGGING_LEVEL_FATAL, "blockexport");
    made.DisableTelemetryEvents();
    return made;
  }

  static Ort::Session open_session(const Ort::Env& environment, const Manifest& manifest, const DecoderOptions& options,
                                   bool& grows) {
    using Clock = std::chrono::steady_clock;
    const Ranges before = own_memory();
    const Clock::time_point began = Clock::now();
    Ort::Session made = load(environment, manifest, options, grows);
    const std::chrono::duration<double> took = Clock::now() - began;
    release_free_memory();
    if (options.provider == "cpu" && !options.exact && !options.low_memory) move_into_huge_pages(before, took.count());
    return made;
  }

  static Ort::Session load(const Ort::Env& environment, const Manifest& manifest, const DecoderOptions& options,
                           bool& grows) {
    const std::filesystem::path path = manifest.file(kModel);
    Ort::SessionOptions made = session_options(options);
    if (options.max_sequence_length == 0 && !grows) return {environment, path.c_str(), made};
    std::ifstream file(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    std::string declared = with_max_sequence_length(content, manifest.max_sequence_length, path.string());
    // A file of another M than its manifest's is opened as it is, for its interface to be refused.
    if (options.max_sequence_length == 0 && declared != content) grows = false;
    if (grows) declared = with_open_slots(declared, path.string());
    if (options.max_sequence_length == 0 && !grows) return {environment, path.c_str(), made};
    made.AddConfigEntry("session.model_external_initializers_file_folder_path", manifest.folder.string().c_str());
    return {environment, declared.data(), declared.size(), made};
  }

  static Ort::SessionOptions session_options(const DecoderOptions& options) {
    Ort::SessionOptions made;
    made.SetIntraOpNumThreads(options.threads);
    if (options.low_memory) made.AddConfigEntry("session.disable_prepacking", "1");
    // A product by quantised weights becomes one kernel, which rounds the activations to 8 bits. Exactly, it is run as it
    // stands, with the weights dequantised when the file is loaded: the kernel widens them again at every call, which
    // takes little memory and much time.
    if (options.exact && !options.low_memory) {
      made.AddConfigEntry("session.disable_quant_qdq", "1");
    } else {
      made.AddConfigEntry("session.qdq_matmulnbits_accuracy_level", options.exact ? "1" : "4");
    }
    if (options.provider == "cuda") {
      OrtCUDAProviderOptions cuda;
      cuda.device_id = options.device;
      made.AppendExecutionProvider_CUDA(cuda);
    } else if (options.provider == "tensorrt") {
      OrtTensorRTProviderOptions tensorrt{};
      tensorrt.device_id = options.device;
      made.AppendExecutionProvider_TensorRT(tensorrt);
    } else if (options.provider != "cpu") {
      throw Error("the provider \"" + options.provider + "\" is none of cpu, cuda, tensorrt");
    }
    return made;
  }

  void check_interface() {
    const std::string artifact = (manifest().folder / kModel).string();
    std::vector<DeclaredPort> inputs, outputs;
    Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < session_.GetInputCount(); ++i) {
      inputs.push_back(declared(session_.GetInputNameAllocated(i, allocator).get(), session_.GetInputTypeInfo(i)));
    }
    for (std::size_t i = 0; i < session_.GetOutputCount(); ++i) {
      outputs.push_back(declared(session_.GetOutputNameAllocated(i, allocator).get(), session_.GetOutputTypeInfo(i)));
    }
    for (auto* ports : {&inputs, &outputs}) {
      for (DeclaredPort& port : *ports) declare_slots(port);
    }
    check_ports(manifest().inputs, inputs, "input", artifact);
    check_ports(manifest().outputs, outputs, "output", artifact);
  }

  // What was left open in the session is M in the file.
  void declare_slots(DeclaredPort& port) const {
    const bool is_open = grows_ && port.shape.size() == 4 && port.shape[2] < 0;
    if (is_open) port.shape[2] = max_sequence_length();
  }

  static DeclaredPort declared(const char* name, const Ort::TypeInfo& info) {
    const auto tensor = info.GetTensorTypeAndShapeInfo();
    return {name, type_name(tensor.GetElementType()), tensor.GetShape()};
  }

  std::vector<std::int64_t> cache_shape() const {
    return {batch_size(), manifest().num_key_value_heads, slots_, manifest().head_dim};
  }

  Ort::Value tensor(const Ort::MemoryInfo& where, void* data, std::size_t bytes, const std::vector<std::int64_t>& shape,
                    DType dtype) const {
    return Ort::Value::CreateTensor(where, data, bytes, shape.data(), shape.size(), element_type(dtype));
  }

  // Bytes of one row's slots of one head.
  std::size_t plane_bytes() const {
    return static_cast<std::size_t>(slots_ * manifest().head_dim) * size_of(manifest().dtype);
  }

  std::size_t planes() const { return static_cast<std::size_t>(batch_size() * manifest().num_key_value_heads); }

  // Has at least `slots` slots, with what is in those that there are.
  void make_room(std::int64_t slots) {
    if (slots <= slots_) return;
    const std::size_t held = plane_bytes();
    while (slots_ < slots) slots_ *= 2;
    slots_ = std::min(slots_, max_sequence_length());
    for (Buffer& cache : caches_) {
      Buffer larger(planes() * plane_bytes());
      for (std::size_t i = 0; i < planes(); ++i) {
        std::memcpy(static_cast<std::byte*>(larger.data()) + i * plane_bytes(),
                    static_cast<const std::byte*>(cache.data()) + i * held, held);
      }
      cache = std::move(larger);
    }
    binding_ = Ort::IoBinding(session_);
    bind_caches(false);
  }

  void allocate(std::int64_t) override {
    binding_ = Ort::IoBinding(session_);
    caches_.clear();
    device_caches_.clear();
    slots_ = grows_ ? std::min(kFirstSlots, max_sequence_length()) : max_sequence_length();
    const std::size_t bytes = planes() * plane_bytes();
    const std::size_t count = manifest().inputs.size() - kFirstCache;
    // On a GPU the first run reads one zeroed host buffer for all and fills buffers of the device.
    for (std::size_t i = 0; i < (on_host_ ? count : 1); ++i) caches_.emplace_back(bytes);
    if (!on_host_) {
      Ort::Allocator allocator(session_, device_);
      for (std::size_t i = 0; i < count; ++i) {
        const auto shape = cache_shape();
        device_caches_.push_back(
            Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), element_type(manifest().dtype)));
      }
    }
    bind_caches(true);
  }

  // Past and present are one buffer, so that the graph updates it in place.
  void bind_caches(bool fresh) {
    for (std::size_t i = kFirstCache; i < manifest().inputs.size(); ++i) {
      const Port& past = manifest().inputs[i];
      const Port& present = manifest().outputs[i - kFirstCache + 1];
      if (on_host_) {
        const Buffer& buffer = caches_[i - kFirstCache];
        const auto value = tensor(host_, buffer.data(), buffer.bytes(), cache_shape(), past.dtype);
        binding_.BindInput(past.name.c_str(), value);
        binding_.BindOutput(present.name.c_str(), value);
      } else {
        const Ort::Value& value = device_caches_[i - kFirstCache];
        const Buffer& zeros = caches_[0];
        const auto empty = tensor(host_, zeros.data(), zeros.bytes(), cache_shape(), past.dtype);
        binding_.BindInput(past.name.c_str(), fresh ? empty : value);
        binding_.BindOutput(present.name.c_str(), value);
      }
    }
    fresh_ = fresh;
  }

  Logits run(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) override {
    const std::int64_t length = inputs.count / batch_size();
    const std::vector<std::int64_t> shape = {batch_size(), length};
    std::int64_t start = 0;
    for (std::int64_t row = 0; row < batch_size(); ++row) {
      start = std::max(start, position_ids[static_cast<std::size_t>(row * length)]);
    }
    make_room(start + length);
    bind_first_input(inputs, shape);
    // ONNX Runtime takes inputs as mutable memory and does not write to them.
    auto* positions = const_cast<std::int64_t*>(position_ids.data());
    binding_.BindInput(manifest().inputs[1].name.c_str(),
                       tensor(host_, positions, position_ids.size() * sizeof(std::int64_t), shape, DType::kInt64));
    const std::int64_t rows = manifest().last_logits_only ? 1 : length;
    const std::int64_t width = manifest().headless ? manifest().hidden_size : manifest().vocab_size;
    const auto bytes = static_cast<std::size_t>(batch_size() * rows * width) * size_of(manifest().dtype);
    output_.resize(bytes);
    binding_.BindOutput(manifest().outputs[0].name.c_str(),
                        tensor(host_, output_.data(), bytes, {batch_size(), rows, width}, manifest().dtype));
    try {
      session_.Run(Ort::RunOptions{nullptr}, binding_);
      binding_.SynchronizeOutputs();
    } catch (const Ort::Exception& error) {
      throw Error("ONNX Runtime could not run " + (manifest().folder / kModel).string() + ": " + error.what());
    }
    if (!on_host_ && fresh_) bind_caches(false);
    return {output_.data(), manifest().dtype, batch_size(), rows, width};
  }

  void bind_first_input(const Inputs& inputs, std::vector<std::int64_t> shape) {
    const Port& port = manifest().inputs[0];
    void* data = const_cast<std::int64_t*>(inputs.ids);
    auto elements = static_cast<std::size_t>(inputs.count);
    if (inputs.embeds != nullptr) {
      shape.push_back(inputs.width);
      elements *= static_cast<std::size_t>(inputs.width);
      data = narrowed(inputs.embeds, elements);
    }
    binding_.BindInput(port.name.c_str(), tensor(host_, data, elements * size_of(port.dtype), shape, port.dtype));
  }

  void* narrowed(const float* values, std::size_t count) {
    if (manifest().dtype == DType::kFloat32) return const_cast<float*>(values);
    half_inputs_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      half_inputs_[i] =
          manifest().dtype == DType::kFloat16 ? float_to_float16(values[i]) : float_to_bfloat16(values[i]);
    }
    return half_inputs_.data();
  }

  static constexpr std::size_t kFirstCache = 2;  // after ids (or embeddings) and positions

  Ort::Env environment_;
  bool on_host_, grows_, fresh_ = true;
  std::int64_t slots_ = 0;  // that are bound
  Ort::Session session_;
  Ort::MemoryInfo device_, host_;
  Ort::IoBinding binding_{nullptr};
  std::vector<Buffer> caches_;
  std::vector<Ort::Value> device_caches_;
  std::vector<std::byte> output_;
  std::vector<std::uint16_t> half_inputs_;
};

}  // namespace

namespace {

/// What to add where this ONNX Runtime is too old for any bundle: TensorScatter has kernels from 1.25 on.
std::string needed() {
  const std::string version = Ort::GetVersionString();
  const bool old = version.rfind("1.", 0) == 0 && std::atoi(version.c_str() + 2) < 25;
  return old ? ". A bundle needs ONNX Runtime 1.25 or later: link the library of the Python wheel (onnxruntime/capi)" : "";
}

}  // namespace

std::unique_ptr<Decoder> open_onnxruntime(Manifest manifest, const DecoderOptions& options) {
  const std::string artifact = (manifest.folder / kModel).string();
  verify_with_sources(manifest, kModel, options.verify_weights);
  try {
    return std::make_unique<OnnxRuntimeDecoder>(std::move(manifest), options);
  } catch (const Ort::Exception& error) {
    throw Error("ONNX Runtime " + Ort::GetVersionString() + " does not load " + artifact + " on " + options.provider +
                ": " + error.what() + needed());
  }
}

}  // namespace blockexport
