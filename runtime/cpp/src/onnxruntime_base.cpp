#include "onnxruntime_base.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "blockexport/error.h"
#include "half.h"
#include "redeclare.h"
#include "resident.h"

namespace blockexport {
namespace {

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


using CudaOptions = std::unique_ptr<OrtCUDAProviderOptionsV2, decltype(OrtApi::ReleaseCUDAProviderOptions)>;

CudaOptions cuda_options(int device, bool records) {
  const OrtApi& api = Ort::GetApi();
  OrtCUDAProviderOptionsV2* made = nullptr;
  Ort::ThrowOnError(api.CreateCUDAProviderOptions(&made));
  CudaOptions owned(made, api.ReleaseCUDAProviderOptions);
  const std::string index = std::to_string(device);
  const char* keys[] = {"device_id", "use_tf32", "enable_cuda_graph"};
  const char* values[] = {index.c_str(), "0", records ? "1" : "0"};
  Ort::ThrowOnError(api.UpdateCUDAProviderOptions(made, keys, values, std::size(keys)));
  return owned;
}

Ort::SessionOptions session_options(const DecoderOptions& options, bool records) {
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
    made.AppendExecutionProvider_CUDA_V2(*cuda_options(options.device, records));
  } else if (options.provider == "tensorrt") {
    OrtTensorRTProviderOptions tensorrt{};
    tensorrt.device_id = options.device;
    made.AppendExecutionProvider_TensorRT(tensorrt);
  } else if (options.provider != "cpu") {
    throw Error("the provider \"" + options.provider + "\" is none of cpu, cuda, tensorrt");
  }
  return made;
}

DeclaredPort declared(const char* name, const Ort::TypeInfo& info) {
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  return {name, type_name(tensor.GetElementType()), tensor.GetShape()};
}

}  // namespace

std::size_t bytes_of(const std::vector<std::int64_t>& shape, DType dtype) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t length : shape) bytes *= static_cast<std::size_t>(length);
  return bytes;
}

OnnxRuntimeBase::OnnxRuntimeBase(Manifest from, const DecoderOptions& options)
    : Decoder(std::move(from)),
      environment_(quiet_environment()),
      model_(onnx_file(options.backend)),
      grows_(!options.exact && options.provider != "tensorrt"),
      session_(open_session(options)),
      host_(Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault)) {
  check_interface();
}

/// Without telemetry, which some builds send by themselves; errors arrive as exceptions and are not logged as well.
Ort::Env OnnxRuntimeBase::quiet_environment() {
  Ort::Env made(ORT_LOGGING_LEVEL_FATAL, "blockexport");
  made.DisableTelemetryEvents();
  return made;
}

Ort::Session OnnxRuntimeBase::open_session(const DecoderOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Ranges before = own_memory();
  const Clock::time_point began = Clock::now();
  Ort::Session made = load(options);
  const std::chrono::duration<double> took = Clock::now() - began;
  release_free_memory();
  if (options.provider == "cpu" && !options.exact && !options.low_memory) move_into_huge_pages(before, took.count());
  return made;
}

Ort::Session OnnxRuntimeBase::load(const DecoderOptions& options) {
  const std::filesystem::path path = manifest().file(model_);
  std::string declared;
  if (options.max_sequence_length != 0 || grows_) {
    std::ifstream file(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    declared = with_max_sequence_length(content, max_sequence_length(), path.string());
    // A file of another M than its manifest's is opened as it is, for its interface to be refused.
    if (options.max_sequence_length == 0 && declared != content) grows_ = false;
    if (grows_) declared = with_open_slots(declared, path.string());
    if (options.max_sequence_length == 0 && !grows_) declared.clear();
  }
  const auto open = [&](bool records) -> Ort::Session {
    Ort::SessionOptions made = session_options(options, records);
    if (declared.empty()) return {environment_, path.c_str(), made};
    made.AddConfigEntry("session.model_external_initializers_file_folder_path", manifest().folder.string().c_str());
    return {environment_, declared.data(), declared.size(), made};
  };
  records_ = options.provider == "cuda";
  if (!records_) return open(false);
  try {
    return open(true);
  } catch (const Ort::Exception& error) {
    if (std::string(error.what()).find("graph capture") == std::string::npos) throw;
    records_ = false;
    return open(false);
  }
}

void OnnxRuntimeBase::check_interface() {
  const std::string artifact = (manifest().folder / model_).string();
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
void OnnxRuntimeBase::declare_slots(DeclaredPort& port) const {
  const bool is_open = grows_ && port.shape.size() == 4 && port.shape[2] < 0;
  if (is_open) port.shape[2] = max_sequence_length();
}

std::int64_t OnnxRuntimeBase::first_slots() const {
  return grows_ ? std::min(kFirstSlots, max_sequence_length()) : max_sequence_length();
}

std::int64_t OnnxRuntimeBase::doubled(std::int64_t held, std::int64_t wanted) const {
  while (held < wanted) held *= 2;
  return std::min(held, max_sequence_length());
}

std::int64_t OnnxRuntimeBase::needed(const std::vector<std::int64_t>& position_ids) const {
  const auto length = static_cast<std::int64_t>(position_ids.size()) / batch_size();
  std::int64_t start = 0;
  for (std::int64_t row = 0; row < batch_size(); ++row) {
    start = std::max(start, position_ids[static_cast<std::size_t>(row * length)]);
  }
  return start + length;
}

std::vector<std::int64_t> OnnxRuntimeBase::cache_shape(std::int64_t slots) const {
  return {batch_size(), manifest().num_key_value_heads, slots, manifest().head_dim};
}

std::size_t OnnxRuntimeBase::plane_bytes(std::int64_t slots) const {
  return bytes_of({slots, manifest().head_dim}, manifest().dtype);
}

std::size_t OnnxRuntimeBase::planes() const {
  return static_cast<std::size_t>(batch_size() * manifest().num_key_value_heads);
}

Ort::Value OnnxRuntimeBase::tensor(const Ort::MemoryInfo& where, void* data, const std::vector<std::int64_t>& shape,
                                   DType dtype) const {
  return Ort::Value::CreateTensor(where, data, bytes_of(shape, dtype), shape.data(), shape.size(), element_type(dtype));
}

void* OnnxRuntimeBase::first_input(const Inputs& inputs, std::vector<std::int64_t>& shape) {
  // ONNX Runtime takes inputs as mutable memory and does not write to them.
  if (inputs.embeds == nullptr) return const_cast<std::int64_t*>(inputs.ids);
  shape.push_back(inputs.width);
  if (manifest().dtype == DType::kFloat32) return const_cast<float*>(inputs.embeds);
  half_inputs_.resize(static_cast<std::size_t>(inputs.count * inputs.width));
  const auto narrowed = manifest().dtype == DType::kFloat16 ? float_to_float16 : float_to_bfloat16;
  std::transform(inputs.embeds, inputs.embeds + half_inputs_.size(), half_inputs_.begin(), narrowed);
  return half_inputs_.data();
}

std::vector<std::int64_t> OnnxRuntimeBase::output_shape(std::int64_t length) const {
  return {batch_size(), manifest().last_logits_only ? 1 : length,
          manifest().headless ? manifest().hidden_size : manifest().vocab_size};
}

void OnnxRuntimeBase::run_session(const Ort::RunOptions& options, const Ort::IoBinding& binding) {
  try {
    session_.Run(options, binding);
  } catch (const Ort::Exception& error) {
    throw Error("ONNX Runtime could not run " + (manifest().folder / model_).string() + ": " + error.what());
  }
}

}  // namespace blockexport
