// An engine of the bundle on TensorRT or TensorRT for RTX: one source, the headers and library decide. The cache stays
// on the GPU; past and present of a layer are one buffer, which the engine updates in place. TensorRT drops writes past
// the last slot silently, so Decoder::forward has refused them before they come here.
#include <NvInferRuntime.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "backends.h"
#include "blockexport/error.h"
#include "cuda_memory.h"
#include "engine_file.h"
#include "half.h"

namespace blockexport {
namespace {

/// Keeps what TensorRT said, for the message of the error that follows.
class Log final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override {
    if (severity > Severity::kERROR) return;
    try {
      said_ += (said_.empty() ? "" : "; ") + std::string(message);
    } catch (...) {  // out of memory while complaining: the complaint is lost, the error is not
    }
  }
  std::string take() { return said_.empty() ? "it gives no reason" : std::exchange(said_, {}); }

 private:
  std::string said_;
};

std::string type_name(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kINT64: return name_of(DType::kInt64);
    case nvinfer1::DataType::kINT32: return name_of(DType::kInt32);
    case nvinfer1::DataType::kFLOAT: return name_of(DType::kFloat32);
    case nvinfer1::DataType::kHALF: return name_of(DType::kFloat16);
    case nvinfer1::DataType::kBF16: return name_of(DType::kBFloat16);
    default: return "TensorRT type " + std::to_string(static_cast<int>(type));
  }
}

nvinfer1::Dims dims_of(const std::vector<std::int64_t>& shape) {
  nvinfer1::Dims dims{};
  dims.nbDims = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), std::begin(dims.d));
  return dims;
}

std::string version() {
  const auto number = static_cast<int>(getInferLibVersion());
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." + std::to_string(number % 100) +
         "." + std::to_string(getInferLibBuildVersion());
}

std::string capability_of(int device) {
  check_cuda(cudaSetDevice(device), "use the GPU");
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "ask the GPU what it is");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "ask the GPU what it is");
  return std::to_string(major) + "." + std::to_string(minor);
}

class TensorRtDecoder final : public Decoder {
 public:
  TensorRtDecoder(Manifest from, const EngineFile& file, const std::filesystem::path& path, int device)
      : Decoder(std::move(from)), path_(path), profiles_(file.profiles), device_(device) {
    runtime_.reset(nvinfer1::createInferRuntime(log_));
    if (!runtime_) throw Error("TensorRT does not start: " + log_.take());
    std::ifstream stream(path, std::ios::binary);
    const std::vector<char> content{std::istreambuf_iterator<char>(stream), {}};
    engine_.reset(runtime_->deserializeCudaEngine(content.data(), content.size()));
    if (!engine_) throw Error("TensorRT " + version() + " does not load " + path.string() + ": " + log_.take());
    check_interface();
    for (std::size_t i = 0; i < profiles_.size(); ++i) contexts_.push_back(make_context(static_cast<std::int32_t>(i)));
    reset();
  }

 private:
  using Context = std::unique_ptr<nvinfer1::IExecutionContext>;

  void check_interface() const {
    std::vector<DeclaredPort> inputs, outputs;
    for (std::int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      const char* name = engine_->getIOTensorName(i);
      const nvinfer1::Dims dims = engine_->getTensorShape(name);
      DeclaredPort port{name, type_name(engine_->getTensorDataType(name)), {dims.d, dims.d + std::max(dims.nbDims, 0)}};
      const bool is_input = engine_->getTensorIOMode(name) == nvinfer1::TensorIOMode::kINPUT;
      (is_input ? inputs : outputs).push_back(std::move(port));
    }
    sort_like(manifest().inputs, inputs);
    sort_like(manifest().outputs, outputs);
    check_ports(manifest().inputs, inputs, "input", path_.string());
    check_ports(manifest().outputs, outputs, "output", path_.string());
    for (const Port& port : manifest().outputs) {
      const char* input = port.aliases.empty() ? nullptr : engine_->getAliasedInputTensor(port.name.c_str());
      if (!port.aliases.empty() && (input == nullptr || port.aliases != input)) {
        throw Error(path_.string() + " does not update " + port.aliases + " in place: build it again");
      }
    }
  }

  // Engines name their tensors and bind them by name: their order has no meaning.
  static void sort_like(const std::vector<Port>& expected, std::vector<DeclaredPort>& declared) {
    const auto place = [&expected](const DeclaredPort& port) {
      return std::find_if(expected.begin(), expected.end(), [&port](const Port& other) { return other.name == port.name; }) -
             expected.begin();
    };
    std::stable_sort(declared.begin(), declared.end(),
                     [&place](const DeclaredPort& a, const DeclaredPort& b) { return place(a) < place(b); });
  }

  // A context per profile, so that going from prefill to decode switches nothing.
  Context make_context(std::int32_t profile) {
    Context context(engine_->createExecutionContext());
    if (!context || !context->setOptimizationProfileAsync(profile, stream_.get())) {
      throw Error("TensorRT has no execution context for " + path_.string() + ": " + log_.take());
    }
    check_cuda(cudaStreamSynchronize(stream_.get()), "prepare the engine");
    return context;
  }

  void allocate(std::int64_t batch_size) override {
    check_cuda(cudaSetDevice(device_), "use the GPU");
    std::int64_t most = 0;
    for (const EngineProfile& profile : profiles_) most = std::max(most, profile.batch_size[2]);
    if (batch_size > most) {
      throw Error(std::to_string(batch_size) + " rows were asked of an engine built for at most " + std::to_string(most) +
                  ": build it again with --max-batch-size " + std::to_string(batch_size));
    }
    const auto bytes = static_cast<std::size_t>(cache_elements(manifest(), batch_size)) * size_of(manifest().dtype);
    caches_.clear();
    for (std::size_t i = kFirstCache; i < manifest().inputs.size(); ++i) caches_.emplace_back(bytes);
    for (const Context& context : contexts_) bind_caches(*context);
  }

  void bind_caches(nvinfer1::IExecutionContext& context) {
    const std::vector<std::int64_t> shape = {batch_size(), manifest().num_key_value_heads, max_sequence_length(),
                                             manifest().head_dim};
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      bind(context, manifest().inputs[i + kFirstCache].name, caches_[i].data(), &shape);
      bind(context, manifest().outputs[i + 1].name, caches_[i].data(), nullptr);
    }
  }

  void bind(nvinfer1::IExecutionContext& context, const std::string& name, void* data,
            const std::vector<std::int64_t>* shape) {
    const bool shaped = shape == nullptr || context.setInputShape(name.c_str(), dims_of(*shape));
    if (!shaped || !context.setTensorAddress(name.c_str(), data)) {
      throw Error("TensorRT refuses shape or buffer of " + name + ": " + log_.take());
    }
  }

  Logits run(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) override {
    check_cuda(cudaSetDevice(device_), "use the GPU");
    const std::int64_t length = inputs.count / batch_size();
    const std::int64_t rows = manifest().last_logits_only ? 1 : length;
    const std::int64_t width = manifest().headless ? manifest().hidden_size : manifest().vocab_size;
    std::int64_t most = 0;
    for (const EngineProfile& profile : profiles_) most = std::max(most, profile.sequence_length[2]);
    output_.resize(static_cast<std::size_t>(batch_size() * rows * width) * size_of(manifest().dtype));
    for (std::int64_t start = 0; start < length; start += most) {
      run_piece(inputs, position_ids, start, std::min(most, length - start), width);
    }
    return {output_.data(), manifest().dtype, batch_size(), rows, width};
  }

  // Where the last token of a row is, whose position is its highest.
  static std::int64_t last_of(const std::int64_t* line, std::int64_t total) {
    return *std::max_element(line, line + total) - line[0];
  }

  void run_piece(const Inputs& inputs, const std::vector<std::int64_t>& position_ids, std::int64_t start,
                 std::int64_t length, std::int64_t width) {
    nvinfer1::IExecutionContext& context = context_for(length);
    std::vector<std::int64_t> shape = {batch_size(), length};
    const std::int64_t total = inputs.count / batch_size();
    std::vector<std::int64_t> positions = gathered(position_ids.data(), start, length, total, 1);
    for (std::int64_t row = 0; row < batch_size(); ++row) {
      // A piece is written from its first position on, so one that begins in a row's padding counts on there.
      const std::int64_t* line = position_ids.data() + row * total;
      if (start <= last_of(line, total)) continue;
      for (std::int64_t i = 0; i < length; ++i) positions[static_cast<std::size_t>(row * length + i)] = line[0] + start + i;
    }
    upload(positions_, positions);
    bind(context, manifest().inputs[1].name, positions_.data(), &shape);
    if (inputs.embeds == nullptr) {
      upload(first_, gathered(inputs.ids, start, length, total, 1));
    } else {
      shape.push_back(inputs.width);
      upload(first_, narrowed(gathered(inputs.embeds, start, length, total, inputs.width)));
    }
    bind(context, manifest().inputs[0].name, first_.data(), &shape);

    const std::int64_t rows = manifest().last_logits_only ? 1 : length;
    const std::size_t row_bytes = static_cast<std::size_t>(rows * width) * size_of(manifest().dtype);
    device_output_.reserve(row_bytes * static_cast<std::size_t>(batch_size()));
    bind(context, manifest().outputs[0].name, device_output_.data(), nullptr);
    if (!context.enqueueV3(stream_.get())) throw Error("TensorRT did not run the step: " + log_.take());
    // Row b's piece goes after row b's earlier pieces.
    const std::size_t pitch = output_.size() / static_cast<std::size_t>(batch_size());
    for (std::int64_t row = 0; row < batch_size(); ++row) {
      // Of last_logits_only a row has one, from the piece with its last token.
      const std::int64_t last = last_of(position_ids.data() + row * total, total);
      if (manifest().last_logits_only && (last < start || last >= start + length)) continue;
      const std::size_t offset =
          manifest().last_logits_only ? 0 : pitch / static_cast<std::size_t>(total) * static_cast<std::size_t>(start);
      const auto at = static_cast<std::size_t>(row);
      check_cuda(cudaMemcpyAsync(output_.data() + at * pitch + offset,
                                 static_cast<const std::byte*>(device_output_.data()) + at * row_bytes, row_bytes,
                                 cudaMemcpyDeviceToHost, stream_.get()),
                 "copy the outputs");
    }
    check_cuda(cudaStreamSynchronize(stream_.get()), "run the step");
  }

  // The last fitting profile is the narrowest: decode for single tokens, prefill for everything else.
  nvinfer1::IExecutionContext& context_for(std::int64_t length) const {
    for (std::size_t i = profiles_.size(); i > 0; --i) {
      if (profiles_[i - 1].takes(batch_size(), length)) return *contexts_[i - 1];
    }
    throw Error("no profile of " + path_.string() + " takes " + std::to_string(batch_size()) + " rows of " +
                std::to_string(length) + " tokens: build it again with larger --max-batch-size or --max-prefill");
  }

  // Tokens start .. start + length - 1 of every row.
  template <typename T>
  std::vector<T> gathered(const T* values, std::int64_t start, std::int64_t length, std::int64_t total,
                          std::int64_t width) const {
    std::vector<T> made;
    made.reserve(static_cast<std::size_t>(batch_size() * length * width));
    for (std::int64_t row = 0; row < batch_size(); ++row) {
      const T* first = values + (row * total + start) * width;
      made.insert(made.end(), first, first + length * width);
    }
    return made;
  }

  std::vector<std::byte> narrowed(const std::vector<float>& values) const {
    const std::size_t size = size_of(manifest().dtype);
    std::vector<std::byte> made(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t half =
          manifest().dtype == DType::kFloat16 ? float_to_float16(values[i]) : float_to_bfloat16(values[i]);
      const void* source = size == sizeof(float) ? static_cast<const void*>(&values[i]) : &half;
      std::copy_n(static_cast<const std::byte*>(source), size, made.data() + i * size);
    }
    return made;
  }

  template <typename T>
  void upload(DeviceBuffer& buffer, const std::vector<T>& values) {
    buffer.reserve(values.size() * sizeof(T));
    check_cuda(cudaMemcpyAsync(buffer.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream_.get()),
               "copy the inputs");
    check_cuda(cudaStreamSynchronize(stream_.get()), "copy the inputs");  // `values` goes away
  }

  static constexpr std::size_t kFirstCache = 2;  // after ids (or embeddings) and positions

  std::filesystem::path path_;
  std::vector<EngineProfile> profiles_;
  int device_;
  Log log_;
  Stream stream_;
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::vector<Context> contexts_;
  std::vector<DeviceBuffer> caches_;
  DeviceBuffer first_, positions_, device_output_;
  std::vector<std::byte> output_;
};

}  // namespace

std::unique_ptr<Decoder> open_tensorrt(Manifest manifest, const std::string& backend, int device) {
  const EngineFile file = choose_engine(manifest, backend, capability_of(device));
  const std::filesystem::path path = check_engine(manifest, file, version());
  return std::make_unique<TensorRtDecoder>(std::move(manifest), file, path, device);
}

}  // namespace blockexport
