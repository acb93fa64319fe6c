#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace blockexport {

/// Element types of inputs and outputs.
enum class DType { kInt64, kInt32, kFloat32, kFloat16, kBFloat16 };

/// Bytes per element.
std::size_t size_of(DType dtype);
/// The manifest's name of a type, such as `float16`.
std::string name_of(DType dtype);
/// The inverse of name_of. Throws Error for another name.
DType dtype_of(const std::string& name);

/// An input or output of the artifact. An axis is a number, or the name of a size that may vary.
struct Port {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::variant<std::string, std::int64_t>> shape;
  std::string aliases;  ///< of an output: the input whose buffer it may share; else empty
};

/// A file of the bundle, as it was when the bundle was sealed.
struct FileEntry {
  std::string sha256, sampled_sha256;
  std::uint64_t bytes = 0;
  std::map<std::string, std::string> made_from;  ///< name to sha256
};

/// What `manifest.json` says, as far as a program needs it. Names are those of Hugging Face configs.
struct Manifest {
  std::filesystem::path folder;
  std::string model_type, precision;
  DType dtype = DType::kFloat32;  ///< of cache and logits
  std::int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, num_key_value_heads = 0, head_dim = 0;
  std::int64_t max_sequence_length = 0;  ///< M, cache slots per row
  std::int64_t rope_table_rows = 0;      ///< the largest M that the artifact can be opened with
  std::int64_t bos_token_id = -1;        ///< -1 when there is none
  std::vector<std::int64_t> eos_token_ids;
  bool headless = false, last_logits_only = false;
  std::vector<Port> inputs, outputs;
  std::map<std::string, FileEntry> files;

  /// Path of a file of the bundle. Throws Error when the manifest does not list it or it is not there.
  std::filesystem::path file(const std::string& name) const;
};

/// The schema version of manifests that this library reads.
inline constexpr int kSchemaVersion = 2;

/// Reads a bundle's manifest. Throws Error: no bundle, a damaged manifest, one of another schema, numbers that contradict
/// each other.
Manifest read_manifest(const std::filesystem::path& bundle);

/// Compares every file of the bundle with its recorded size and SHA-256, and every derived file with what it was made
/// from. Throws Error naming the first that differs. `each`, if given, hears the name of every file before it is read.
void verify_files(const Manifest& manifest, const std::function<void(const std::string&)>& each = {});

/// Compares one file with what the manifest records: its size, and the SHA-256 of its sampled pages, which takes
/// milliseconds whatever its size, or, with `whole`, of all of it. Throws Error when it is another file.
void verify_file(const Manifest& manifest, const std::string& name, bool whole);

/// One sentence, without its full stop, where the bundle's own report says that its file was judged and found bad; nothing
/// of any other bundle, judged or not, and where the report is missing or damaged, which verify_files tells of.
std::optional<std::string> why_bad(const Manifest& manifest);

/// The same for a file and what it was made from: an artifact and the files of weights that it reads.
void verify_with_sources(const Manifest& manifest, const std::string& name, bool whole);

}  // namespace blockexport
