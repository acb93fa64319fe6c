#include "blockexport/decoder.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "backends.h"
#include "blockexport/error.h"
#include "half.h"

namespace blockexport {

std::vector<float> Logits::at(std::int64_t row, std::int64_t position) const {
  if (row < 0 || row >= batch_size || position < 0 || position >= sequence_length) {
    throw Error("logits of row " + std::to_string(row) + ", position " + std::to_string(position) +
                " were asked for and the call gave [" + std::to_string(batch_size) + ", " +
                std::to_string(sequence_length) + "]");
  }
  std::vector<float> values(static_cast<std::size_t>(width));
  const auto offset = static_cast<std::size_t>((row * sequence_length + position) * width) * size_of(dtype);
  const auto* bytes = static_cast<const std::byte*>(data) + offset;
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), bytes, values.size() * sizeof(float));
    return values;
  }
  std::uint16_t bits;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&bits, bytes + 2 * i, sizeof bits);
    values[i] = dtype == DType::kFloat16 ? float16_to_float(bits) : bfloat16_to_float(bits);
  }
  return values;
}

Decoder::Decoder(Manifest manifest) : manifest_(std::move(manifest)) {}

std::int64_t Decoder::room() const {
  return max_sequence_length() - (lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end()));
}

void Decoder::reset(std::int64_t batch_size) {
  if (batch_size < 1) throw Error("a cache of " + std::to_string(batch_size) + " rows was asked for: use at least 1");
  check_memory(manifest_, batch_size);
  lengths_.assign(static_cast<std::size_t>(batch_size), 0);
  allocate(batch_size);
}

void Decoder::forget_after(std::int64_t slots) {
  const std::int64_t least = lengths_.empty() ? 0 : *std::min_element(lengths_.begin(), lengths_.end());
  if (slots < 0 || slots > least) {
    throw Error("forget_after " + std::to_string(slots) + " is outside 0.." + std::to_string(least) +
                ", what the shortest row holds");
  }
  lengths_.assign(lengths_.size(), slots);
}

Logits Decoder::prefill(const Inputs& inputs, const std::vector<std::int64_t>& lengths) {
  const std::int64_t length = batch_size() > 0 ? inputs.count / batch_size() : 0;
  if (!lengths.empty() && lengths.size() != lengths_.size()) {
    throw Error(std::to_string(lengths.size()) + " lengths were given for a cache of " + std::to_string(batch_size()) +
                " rows: give one for each");
  }
  for (const std::int64_t valid : lengths) {
    if (valid < 1 || valid > length) {
      throw Error("a row's length is " + std::to_string(valid) + " in a chunk of " + std::to_string(length) +
                  " tokens: it must be 1.." + std::to_string(length));
    }
  }
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(std::max<std::int64_t>(inputs.count, 0)));
  for (std::size_t row = 0; row < lengths_.size(); ++row) {
    // The artifact takes a row's logits at its highest position, so padding repeats that of the last token.
    const std::int64_t last = (lengths.empty() || !manifest_.last_logits_only ? length : lengths[row]) - 1;
    for (std::int64_t i = 0; i < length; ++i) positions.push_back(lengths_[row] + std::min(i, last));
  }
  const Logits logits = forward(inputs, positions);
  for (std::size_t row = 0; row < lengths_.size(); ++row) lengths_[row] += lengths.empty() ? length : lengths[row];
  return logits;
}

Logits Decoder::prefill_last(const Inputs& inputs) {
  last_alone_ = true;
  try {
    const Logits logits = prefill(inputs);
    last_alone_ = false;
    return logits;
  } catch (...) {
    last_alone_ = false;
    throw;
  }
}

Logits Decoder::step(const Inputs& inputs) {
  if (inputs.count != batch_size()) {
    throw Error("a step was given " + std::to_string(inputs.count) + " tokens for " + std::to_string(batch_size()) +
                " rows: give one for each, or call prefill");
  }
  return prefill(inputs);
}

Logits Decoder::forward(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) {
  check(inputs, position_ids);
  return run(inputs, position_ids);
}

std::string Decoder::room_for(const std::string& what, std::int64_t slots) const {
  const std::int64_t most = manifest_.rope_table_rows;
  const std::string rows = std::to_string(most), wanted = std::to_string(slots), shorten = "shorten the " + what;
  if (slots <= most) {
    return shorten + ", or open the bundle with max_sequence_length (-M) from " + wanted + " to " + rows;
  }
  return shorten + " to at most " + rows + ", the rows of this bundle's RoPE table, or export again with " +
         "--max-sequence-length " + wanted + " --beyond-trained-range";
}

void Decoder::check(const Inputs& inputs, const std::vector<std::int64_t>& position_ids) const {
  const std::int64_t rows = batch_size();
  if (inputs.batch_size != rows) {
    throw Error(std::to_string(inputs.batch_size) + " rows were given to a cache of " + std::to_string(rows) +
                ": call reset(" + std::to_string(inputs.batch_size) + ") first");
  }
  if (inputs.count < 1 || inputs.count % rows != 0 || position_ids.size() != static_cast<std::size_t>(inputs.count)) {
    throw Error(std::to_string(inputs.count) + " tokens and " + std::to_string(position_ids.size()) +
                " positions were given for " + std::to_string(rows) +
                " rows: both must be [batch_size, sequence_length], with at least one token");
  }
  if (manifest_.headless != (inputs.embeds != nullptr) || (manifest_.headless && inputs.width != manifest_.hidden_size)) {
    throw Error(manifest_.headless ? "this model takes embeddings of width " + std::to_string(manifest_.hidden_size) +
                                         ": give floats with that hidden_size"
                                   : std::string("this model takes token ids: give integers"));
  }
  const std::int64_t length = inputs.count / rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* line = position_ids.data() + row * length;
    // With last_logits_only what follows the highest position is padding.
    const auto* const end = manifest_.last_logits_only ? std::max_element(line, line + length) + 1 : line + length;
    for (const auto* at = line + 1; at < line + length; ++at) {
      if (at < end ? *at != at[-1] + 1 : *at < 0) {
        throw Error("positions must count up by one along each row: new keys are one slice");
      }
    }
    // Written so that no position can overflow the sum.
    if (line[0] < 0 || line[0] > max_sequence_length() - length) {
      throw Error(std::to_string(length) + " tokens (padding included) at position " + std::to_string(line[0]) +
                  " do not fit into the " + std::to_string(max_sequence_length()) +
                  " cache slots: " + room_for("input", std::clamp<std::int64_t>(line[0], 0, manifest_.rope_table_rows) + length));
    }
  }
  for (std::int64_t i = 0; inputs.ids != nullptr && i < inputs.count; ++i) {
    if (inputs.ids[i] < 0 || inputs.ids[i] >= manifest_.vocab_size) {
      throw Error("the token id " + std::to_string(inputs.ids[i]) + " is outside of the vocabulary of " +
                  std::to_string(manifest_.vocab_size) + ": use the bundle's own tokenizer");
    }
  }
}

namespace {

// More than a processor can run only wait for each other; tens of thousands hang the process.
int most_threads() { return std::max(64, static_cast<int>(std::thread::hardware_concurrency())); }

void redeclare(Manifest& manifest, std::int64_t slots) {
  if (slots < 1 || slots > manifest.rope_table_rows) {
    throw Error("max_sequence_length " + std::to_string(slots) + " is outside 1.." +
                std::to_string(manifest.rope_table_rows) +
                ", the rows of this bundle's RoPE table" +
                (slots < 1 ? std::string(": choose at least 1")
                           : ": export again with --max-sequence-length " + std::to_string(slots) +
                                 " --beyond-trained-range"));
  }
  manifest.max_sequence_length = slots;
  for (auto* ports : {&manifest.inputs, &manifest.outputs}) {
    for (Port& port : *ports) {
      if (is_cache(port)) port.shape.at(2) = slots;
    }
  }
}

}  // namespace

void choose_device(DecoderOptions& options, const std::string& name) {
  const std::string kind = name.substr(0, name.find(':')), number = name.substr(std::min(name.size(), kind.size() + 1));
  const bool counted = name.size() > kind.size();
  const bool digits = !number.empty() && number.size() < 4 && number.find_first_not_of("0123456789") == std::string::npos;
  if ((kind != "cpu" && kind != "cuda") || (counted && (kind == "cpu" || !digits))) {
    throw Error("--device \"" + name + "\" is no device: give cpu, cuda or cuda:N");
  }
  options.provider = kind;
  options.device = counted ? std::stoi(number) : 0;
}

std::vector<std::string> backends() {
  std::vector<std::string> names;
#ifdef BLOCKEXPORT_WITH_ONNXRUNTIME
  names.insert(names.end(), {"onnxruntime", "onnxruntime-nonpad"});
#endif
#ifdef BLOCKEXPORT_WITH_AOTI
  names.emplace_back("aoti");
#endif
#ifdef BLOCKEXPORT_WITH_TENSORRT
  names.emplace_back("tensorrt");
#endif
#ifdef BLOCKEXPORT_WITH_TENSORRT_RTX
  names.emplace_back("tensorrt-rtx");
#endif
  return names;
}

std::unique_ptr<Decoder> open_decoder(const std::filesystem::path& bundle, const DecoderOptions& options) {
  const std::vector<std::string> built = backends();
  std::string known;
  for (const std::string& name : built) known += (known.empty() ? "" : ", ") + name;
  const std::string backend = !options.backend.empty() || built.empty() ? options.backend : built.front();
  if (std::find(built.begin(), built.end(), backend) == built.end()) {
    throw Error("the backend \"" + backend + "\" is not built into this program, which has " +
                (known.empty() ? "none" : known) + ": configure it with -DBLOCKEXPORT_WITH_...=ON");
  }
  const bool is_onnxruntime = backend.rfind("onnxruntime", 0) == 0;
  if (!is_onnxruntime && (options.threads != 0 || options.low_memory || options.provider == "tensorrt")) {
    throw Error("threads, low_memory and the provider tensorrt concern the backend onnxruntime, and this is " + backend +
                ": leave them out");
  }
  if (options.threads < 0 || options.threads > most_threads()) {
    throw Error("threads is " + std::to_string(options.threads) + ", and must be 0 (the runtime's own choice) to " +
                std::to_string(most_threads()) + " on this machine");
  }
  Manifest manifest = read_manifest(bundle);
  if (options.max_sequence_length != 0) redeclare(manifest, options.max_sequence_length);
#ifdef BLOCKEXPORT_WITH_ONNXRUNTIME
  if (is_onnxruntime) {
    DecoderOptions named = options;
    named.backend = backend;
    return open_onnxruntime(std::move(manifest), named);
  }
#endif
#ifdef BLOCKEXPORT_WITH_AOTI
  if (backend == "aoti") return open_aoti(std::move(manifest), options);
#endif
#if defined(BLOCKEXPORT_WITH_TENSORRT) || defined(BLOCKEXPORT_WITH_TENSORRT_RTX)
  if (backend.rfind("tensorrt", 0) == 0) return open_tensorrt(std::move(manifest), backend, options.device);
#endif
  throw Error("the backend \"" + backend + "\" has no way to open a bundle");
}

}  // namespace blockexport
