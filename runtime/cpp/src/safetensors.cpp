#include "safetensors.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "blockexport/error.h"
#include "whole_number.h"

namespace blockexport {

void Safetensors::damaged(const std::string& what) const {
  throw Error(path_.string() + " is damaged (" + what + "): copy the bundle again");
}

Safetensors::Safetensors(const std::filesystem::path& path) : path_(path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path.string() + " cannot be read: check that it exists and its permissions");
  const std::uint64_t size = std::filesystem::file_size(path);
  unsigned char length[8];
  if (!file.read(reinterpret_cast<char*>(length), 8)) damaged("no header");
  std::uint64_t header_size = 0;
  for (int i = 7; i >= 0; --i) header_size = header_size << 8 | length[i];
  if (header_size > size - 8) damaged("a header of " + std::to_string(header_size) + " bytes");
  std::string header(static_cast<std::size_t>(header_size), '\0');
  data_.resize(static_cast<std::size_t>(size - 8 - header_size));
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  file.read(data_.data(), static_cast<std::streamsize>(data_.size()));
  if (!file) damaged("it ends early");
  try {
    const auto parsed = nlohmann::json::parse(header);
    for (const auto& [name, entry] : parsed.items()) {
      if (name == "__metadata__") continue;
      const auto& offsets = entry.at("data_offsets");
      Tensor tensor{entry.at("dtype"), {}, natural(offsets.at(0)), natural(offsets.at(1))};
      for (const auto& size : entry.at("shape")) tensor.shape.push_back(whole(size));
      if (tensor.start > tensor.end || tensor.end > data_.size()) damaged("the offsets of " + name);
      tensors_[name] = std::move(tensor);
    }
  } catch (const nlohmann::json::exception& error) {
    damaged(error.what());
  }
}

const Safetensors::Tensor& Safetensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) damaged("it has no tensor " + name);
  return found->second;
}

template <typename T>
std::vector<T> Safetensors::read(const std::string& name, const std::string& dtype) const {
  const Tensor& tensor = find(name);
  if (tensor.dtype != dtype) damaged(name + " is of type " + tensor.dtype + " and not " + dtype);
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || (size > 0 && elements > data_.size() / static_cast<std::uint64_t>(size))) damaged("the shape of " + name);
    elements *= static_cast<std::uint64_t>(size);
  }
  if (elements * sizeof(T) != tensor.end - tensor.start) damaged("the size of " + name);
  std::vector<T> values(static_cast<std::size_t>(elements));
  if (!values.empty()) std::memcpy(values.data(), data_.data() + tensor.start, values.size() * sizeof(T));
  return values;
}

std::vector<std::int64_t> Safetensors::int64s(const std::string& name) const { return read<std::int64_t>(name, "I64"); }
std::vector<float> Safetensors::floats(const std::string& name) const { return read<float>(name, "F32"); }

}  // namespace blockexport
