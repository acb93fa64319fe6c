// What reads a stranger's bytes, as one function of those bytes: it may throw Error, and may do nothing else.
// With BLOCKEXPORT_FUZZER libFuzzer brings the bytes (clang's -fsanitize=fuzzer), for the reader that the environment
// variable BLOCKEXPORT_READER names. Without it: fuzz_readers READER FILE ...
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "blockexport/error.h"
#include "blockexport/manifest.h"
#include "blockexport/text.h"
#include "blockexport/tokenizer.h"
#include "engine_file.h"
#include "redeclare.h"
#include "safetensors.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace {

namespace fs = std::filesystem;
using blockexport::Error;

constexpr const char* kText = "Ab ab<s> \xE2\x96\x81" "ab\n\n  12 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'll \xC3\xA9";

const fs::path& folder() {
  static const fs::path made = [] {
    std::string name = (fs::temp_directory_path() / "blockexport-fuzz-XXXXXX").string();
    return fs::path(::mkdtemp(name.data()));
  }();
  return made;
}

fs::path written(const char* name, const std::string& bytes) {
  const fs::path path = folder() / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

template <typename F>
void may_throw(F&& call) {
  try {
    call();
  } catch (const Error&) {
  }
}

void read_manifest(const std::string& bytes) {
  written("manifest.json", bytes);
  written("a", "");  // the seed's engine
  const blockexport::Manifest manifest = blockexport::read_manifest(folder());
  may_throw([&] { blockexport::why_bad(manifest); });
  may_throw([&] { blockexport::verify_files(manifest); });
  for (const char* backend : {"tensorrt", "tensorrt-rtx"}) {
    may_throw([&] {
      blockexport::check_engine(manifest, blockexport::choose_engine(manifest, backend, "8.9"), "1.7.1.116");
    });
  }
}

void read_golden(const std::string& bytes) {
  const blockexport::Safetensors file(written("golden.safetensors", bytes));
  for (const char* name : {"input_ids", "positions", "prefill"}) may_throw([&] { file.int64s(name); });
  for (const char* name : {"logits", "tolerance", "rms_tolerance"}) may_throw([&] { file.floats(name); });
}

void read_tokenizer(const std::string& bytes) {
  const auto tokenizer = blockexport::load_tokenizer(written("tokenizer.json", bytes));
  std::vector<std::int64_t> ids;
  may_throw([&] { ids = tokenizer->encode(kText); });
  for (std::int64_t id = -1; id < 20; ++id) ids.push_back(id);
  tokenizer->decode(ids, false);
  const auto stream = tokenizer->stream(false);
  for (const std::int64_t id : ids) stream->next(id);
  stream->finish();
}

// An expression, and after a line break the text that it cuts.
void read_expression(const std::string& bytes) {
  const std::size_t line = std::min(bytes.find('\n'), bytes.size());
  const blockexport::text::Regex regex(bytes.substr(0, line));
  const std::u32string text = blockexport::text::to_utf32(std::string_view(bytes).substr(line));
  std::size_t steps = blockexport::text::Regex::steps_for(text);
  for (std::size_t at = 0; at < text.size(); ++at) regex.match(text, at, steps);
}

struct NoTokenizer final : blockexport::Tokenizer {
  std::vector<std::int64_t> encode(std::string_view text, bool) const override {
    return std::vector<std::int64_t>(text.begin(), text.end());
  }
  std::string decode(const std::vector<std::int64_t>&, bool) const override { return {}; }
  std::unique_ptr<blockexport::TextStream> stream(bool) const override { return nullptr; }
  std::int64_t token_to_id(std::string_view token) const override { return static_cast<std::int64_t>(token.size()); }
};

// The small files of a bundle's text side, which all get the same bytes.
void read_text_files(const std::string& bytes) {
  for (const std::string name : {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_turns.json"}) {
    blockexport::Manifest manifest;
    manifest.folder = folder();
    manifest.files[name] = {};
    written(name.c_str(), bytes);
    may_throw([&] {
      const blockexport::BundleText text(manifest, std::make_unique<NoTokenizer>());
      text.prompt("a");
      text.chat({{"system", "s"}, {"user", "u"}, {"assistant", "<think>t</think>\n a "}, {"user", ""}});
    });
  }
}

void read_graph(const std::string& bytes) {
  may_throw([&] { blockexport::with_max_sequence_length(bytes, 77, "model.onnx"); });
  blockexport::with_open_slots(bytes, "model.onnx");
}

const std::map<std::string, void (*)(const std::string&)> kReaders = {
    {"manifest", read_manifest},     {"golden", read_golden},   {"tokenizer", read_tokenizer},
    {"expression", read_expression}, {"text", read_text_files}, {"graph", read_graph}};

void try_input(const std::string& reader, const std::string& bytes) {
  const std::clock_t began = std::clock();
  may_throw([&] { kReaders.at(reader)(bytes); });
  const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  if (seconds < 2) return;  // with sanitizers: a second without
  std::cerr << reader << " took " << seconds << " s of processor time\n";
  std::abort();
}

}  // namespace

#ifdef BLOCKEXPORT_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string reader = std::getenv("BLOCKEXPORT_READER");
  try_input(reader, std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
#else
int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    try_input(argv[1], std::string(std::istreambuf_iterator<char>(file), {}));
  }
  fs::remove_all(folder());
  std::cout << argc - 2 << " inputs\n";
}
#endif
