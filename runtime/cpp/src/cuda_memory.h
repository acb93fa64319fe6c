#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "blockexport/error.h"

namespace blockexport {

/// Throws Error with CUDA's own words when `code` is not success.
inline void check_cuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) {
    throw Error(std::string("CUDA cannot ") + what + ": " + cudaGetErrorString(code) +
                " (nvidia-smi shows the driver and the free memory)");
  }
}

/// Zeroed memory on the current GPU.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    check_cuda(cudaMalloc(&data_, bytes), "allocate memory for cache and outputs");
    check_cuda(cudaMemset(data_, 0, bytes), "clear memory");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Grows the buffer to at least `bytes`; what it held is lost then.
  void reserve(std::size_t bytes) {
    if (bytes > bytes_) *this = DeviceBuffer(bytes);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A stream of the current GPU.
class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace blockexport
