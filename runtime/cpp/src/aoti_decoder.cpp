#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "backends.h"
#include "blockexport/error.h"
#include "cpu.h"

namespace blockexport {
namespace {

constexpr const char* kPackage = "model.aoti.pt2";
constexpr const char* kInfo = "aoti.json";
constexpr int kInfoSchema = 1;

c10::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kInt64: return c10::ScalarType::Long;
    case DType::kInt32: return c10::ScalarType::Int;
    case DType::kFloat32: return c10::ScalarType::Float;
    case DType::kFloat16: return c10::ScalarType::Half;
    default: return c10::ScalarType::BFloat16;
  }
}

// The package is machine code: on another processor it would crash, and another libtorch may not load it.
void check_machine(const Manifest& manifest, const std::string& device) {
  const std::filesystem::path path = manifest.file(kInfo);
  const std::string package = (manifest.folder / kPackage).string();
  try {
    std::ifstream file(path);
    const nlohmann::json info = nlohmann::json::parse(file);
    if (info.at("schema_version") != kInfoSchema) {
      throw Error(path.string() + " has schema version " + info.at("schema_version").dump() +
                  " and this program reads " + std::to_string(kInfoSchema) + ": build it with the blockexport that wrote it");
    }
    const std::string compiled_for = info.value("device", "cpu");
    if (compiled_for != device) {
      throw Error(package + " was compiled for " + compiled_for + " and was asked to run on " + device +
                  ": say --device " + compiled_for + ", or run `blockexport aoti --device " + device + "`");
    }
    const std::string made_for = info.at("machine"), made_by = info.at("torch"), here = TORCH_VERSION;
    if (made_for != machine()) {
      throw Error(package + " was compiled for " + made_for + " and this is " + machine() +
                  ": run `blockexport aoti` on a machine like this one");
    }
    std::string missing;
    for (const std::string& name : missing_instructions(info.at("instruction_set"))) missing += " " + name;
    if (!missing.empty()) {
      throw Error(package + " uses instructions that this processor lacks:" + missing +
                  ". Run `blockexport aoti` on a machine like this one");
    }
    if (made_by != here) {
      throw Error(package + " was compiled by PyTorch " + made_by + " and this program has " + here +
                  ": run `blockexport aoti` again, or build with that PyTorch");
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(path.string() + " is damaged (" + error.what() + "): run `blockexport aoti` again");
  }
}

class AotiDecoder final : public Decoder {
 public:
  AotiDecoder(Manifest from, const DecoderOptions& options)
      : Decoder(std::move(from)),
        device_(options.provider == "cuda" ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.device))
                                           : c10::Device(c10::kCPU)),
        loader_(manifest().file(kPackage).string(), "model", false, 1, device_.index()) {
    reset();
  }

 private:
  void allocate(std::int64_t batch_size) override {
    const std::vector<std::int64_t> shape = {batch_size, manifest().num_key_value_heads, max_sequence_length(),
                                             manifest().head_dim};
    const c10::InferenceMode inference;
    caches_.clear();
    for (std::int64_t i = 0; i < 2 * manifest().num_hidden_layers; ++i) {
      caches_.push_back(at::zeros(shape, c10::TensorOptions(scalar_type(manifest().dtype)).device(device_)));
    }
  }

  Logits run(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) override {
    const std::int64_t length = inputs.count / batch_size();
    const c10::InferenceMode inference;
    std::vector<at::Tensor> arguments;
    arguments.push_back(first_input(inputs, length));
    // The package takes inputs as mutable memory and writes only to the caches.
    arguments.push_back(at::from_blob(const_cast<std::int64_t*>(position_ids.data()), {batch_size(), length},
                                      c10::ScalarType::Long)
                            .to(device_));
    arguments.insert(arguments.end(), caches_.begin(), caches_.end());
    const std::vector<at::Tensor> outputs = run_package(arguments);
    check_output(outputs, length);
    const std::int64_t wanted = last_alone() ? 1 : outputs[0].size(1);  // what is copied from a GPU
    output_ = (device_.is_cpu() ? outputs[0] : outputs[0].narrow(1, outputs[0].size(1) - wanted, wanted).cpu()).contiguous();
    return {output_.const_data_ptr(), manifest().dtype, output_.size(0), output_.size(1), output_.size(2)};
  }

  std::vector<at::Tensor> run_package(const std::vector<at::Tensor>& arguments) {
    try {
      return loader_.run(arguments);
    } catch (const c10::Error& error) {
      throw Error((manifest().folder / kPackage).string() + " could not run: " + error.what_without_backtrace());
    }
  }

  at::Tensor first_input(const Inputs& inputs, std::int64_t length) const {
    if (inputs.embeds == nullptr) {
      return at::from_blob(const_cast<std::int64_t*>(inputs.ids), {batch_size(), length}, c10::ScalarType::Long)
          .to(device_);
    }
    return at::from_blob(const_cast<float*>(inputs.embeds), {batch_size(), length, inputs.width}, c10::ScalarType::Float)
        .to(device_, scalar_type(manifest().dtype));
  }

  // A package says nothing about its interface, so what it gave is held against the manifest.
  void check_output(const std::vector<at::Tensor>& outputs, std::int64_t length) const {
    const std::vector<std::int64_t> expected = {batch_size(), manifest().last_logits_only ? 1 : length,
                                                manifest().headless ? manifest().hidden_size : manifest().vocab_size};
    if (outputs.size() != 1 || outputs[0].scalar_type() != scalar_type(manifest().dtype) || outputs[0].sizes() != expected) {
      throw Error((manifest().folder / kPackage).string() + " gives other outputs than the manifest's " +
                  manifest().outputs[0].name + " of type " + name_of(manifest().dtype) +
                  ": it belongs to another model, run `blockexport aoti` again");
    }
  }

  c10::Device device_;
  torch::inductor::AOTIModelPackageLoader loader_;
  std::vector<at::Tensor> caches_;
  at::Tensor output_;
};

}  // namespace

std::unique_ptr<Decoder> open_aoti(Manifest manifest, const DecoderOptions& options) {
  if (manifest.files.count(kPackage) == 0) {
    throw Error(manifest.folder.string() + " has no " + kPackage + ": `blockexport aoti BUNDLE` makes one");
  }
  check_machine(manifest, options.provider);
  verify_file(manifest, kPackage, true);  // machine code: nothing of it runs that was not compared
  const std::string package = manifest.file(kPackage).string();
  try {
    return std::make_unique<AotiDecoder>(std::move(manifest), options);
  } catch (const c10::Error& error) {
    throw Error(package + " does not load: " + error.what_without_backtrace());
  }
}

}  // namespace blockexport
