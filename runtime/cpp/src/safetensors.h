#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace blockexport {

/// A small safetensors file read whole. Format: https://huggingface.co/docs/safetensors, "Format".
class Safetensors {
 public:
  /// Throws Error when the file cannot be read or is damaged.
  explicit Safetensors(const std::filesystem::path& path);

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  /// Elements of a tensor of type I64 or F32. Throws Error when it is absent or of another type.
  std::vector<std::int64_t> int64s(const std::string& name) const;
  std::vector<float> floats(const std::string& name) const;
  const std::vector<std::int64_t>& shape(const std::string& name) const { return find(name).shape; }

 private:
  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t start, end;
  };
  const Tensor& find(const std::string& name) const;
  template <typename T>
  std::vector<T> read(const std::string& name, const std::string& dtype) const;
  [[noreturn]] void damaged(const std::string& what) const;

  std::filesystem::path path_;
  std::vector<char> data_;  // after the header
  std::map<std::string, Tensor> tensors_;
};

}  // namespace blockexport
