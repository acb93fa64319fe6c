#pragma once

#include <memory>

#include "blockexport/decoder.h"

namespace blockexport {

// One function per backend, each in a file that is compiled only when it was asked for.
std::unique_ptr<Decoder> open_onnxruntime(Manifest manifest, const DecoderOptions& options);
std::unique_ptr<Decoder> open_aoti(Manifest manifest, const DecoderOptions& options);
std::unique_ptr<Decoder> open_tensorrt(Manifest manifest, const std::string& backend, int device);

/// An input or output as an artifact declares it; an axis of any size is -1.
struct DeclaredPort {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// Throws Error naming the first port that is missing, out of order, or of another type or shape than the manifest's.
void check_ports(const std::vector<Port>& expected, const std::vector<DeclaredPort>& declared, const std::string& kind,
                 const std::string& artifact);

/// Whether a port is the key or value cache of a layer, [batch_size, K, M, H].
bool is_cache(const Port& port);

/// Throws Error when the caches of `batch_size` rows are more than the memory of this machine.
void check_memory(const Manifest& manifest, std::int64_t batch_size);

/// Elements of one layer's key (or value) cache of `batch_size` rows, [batch_size, K, M, H].
std::int64_t cache_elements(const Manifest& manifest, std::int64_t batch_size);

}  // namespace blockexport
