#include "cuda_library.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <string>
#include <type_traits>
#include <type_traits>

#include "blockexport/error.h"

namespace blockexport {
namespace {

constexpr int kByAddress = 4;  // cudaMemcpyDefault: the addresses say where memory is

#ifdef _WIN32
constexpr const char* kNames[] = {"cudart64_13.dll", "cudart64_12.dll"};
HMODULE loaded(const char* name) { return GetModuleHandleA(name); }
void* symbol(HMODULE library, const char* name) { return reinterpret_cast<void*>(GetProcAddress(library, name)); }
#else
constexpr const char* kNames[] = {"libcudart.so.13", "libcudart.so.12"};
void* loaded(const char* name) { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD); }
void* symbol(void* library, const char* name) { return dlsym(library, name); }
#endif

}  // namespace

CudaLibrary::CudaLibrary(int device) : device_(device) {
  for (const char* name : kNames) {
    const auto library = loaded(name);
    if (library == nullptr) continue;
    const auto find = [&](auto& function, const char* called) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol(library, called));
      if (function == nullptr) throw Error(std::string(name) + " has no " + called + ": install another CUDA 12 or 13");
    };
    find(set_device_, "cudaSetDevice");
    find(memset_, "cudaMemset");
    find(memcpy_2d_, "cudaMemcpy2D");
    find(synchronize_, "cudaDeviceSynchronize");
    find(error_, "cudaGetErrorString");
    return;
  }
  throw Error("the CUDA provider has loaded no CUDA runtime that is known here (12 or 13): use an onnxruntime-gpu that is "
              "built for one of them");
}

void CudaLibrary::clear(void* data, std::size_t bytes) const {
  check(set_device_(device_), "use the GPU");
  check(memset_(data, 0, bytes), "clear memory");
  check(synchronize_(), "clear memory");  // ONNX Runtime's streams do not wait for this one
}

void CudaLibrary::copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
                       std::size_t rows) const {
  check(set_device_(device_), "use the GPU");
  check(memcpy_2d_(to, to_pitch, from, from_pitch, bytes, rows, kByAddress), "copy memory");
  check(synchronize_(), "copy memory");
}

void CudaLibrary::check(int code, const char* what) const {
  if (code != 0) {
    throw Error(std::string("CUDA cannot ") + what + ": " + error_(code) +
                " (nvidia-smi shows the driver and the free memory)");
  }
}

}  // namespace blockexport
