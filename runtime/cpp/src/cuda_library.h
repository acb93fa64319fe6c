#pragma once

#include <cstddef>

namespace blockexport {

/// The few functions of CUDA's runtime that a decoder calls itself, out of the library that ONNX Runtime's CUDA provider
/// has loaded: nothing of CUDA is needed to build.
class CudaLibrary {
 public:
  /// Throws Error where no provider has loaded it.
  explicit CudaLibrary(int device);

  /// Zeros.
  void clear(void* data, std::size_t bytes) const;
  /// Copies `rows` rows of `bytes`, which begin every `to_pitch` and `from_pitch` bytes; memory of the GPU or not.
  void copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
            std::size_t rows = 1) const;

 private:
  void check(int code, const char* what) const;

  int device_;
  int (*set_device_)(int) = nullptr;
  int (*memset_)(void*, int, std::size_t) = nullptr;
  int (*memcpy_2d_)(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t, int) = nullptr;
  int (*synchronize_)() = nullptr;
  const char* (*error_)(int) = nullptr;
};

}  // namespace blockexport
