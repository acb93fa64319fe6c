# Target blockexport_tensorrt: TensorRT, or TensorRT for RTX, and the CUDA runtime's header and library.
add_library(blockexport_tensorrt INTERFACE)

if(BLOCKEXPORT_WITH_TENSORRT_RTX)
  set(_blockexport_names tensorrt_rtx libtensorrt_rtx.so.1)
else()
  set(_blockexport_names nvinfer libnvinfer.so.11 libnvinfer.so.10)
endif()
find_path(TENSORRT_INCLUDE_DIR NvInferRuntime.h DOC "Folder of NvInferRuntime.h")
find_library(TENSORRT_LIBRARY NAMES ${_blockexport_names} DOC "libnvinfer or libtensorrt_rtx")
find_path(CUDART_INCLUDE_DIR cuda_runtime_api.h HINTS /usr/local/cuda/include DOC "Folder of cuda_runtime_api.h")
find_library(CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 HINTS /usr/local/cuda/lib64 DOC "libcudart")
set(CUDA_CRT_INCLUDE_DIR "" CACHE PATH "Folder of crt/host_defines.h, where it is not in CUDART_INCLUDE_DIR")

foreach(_blockexport_name TENSORRT_INCLUDE_DIR TENSORRT_LIBRARY CUDART_INCLUDE_DIR CUDART_LIBRARY)
  if(NOT ${_blockexport_name})
    message(FATAL_ERROR "${_blockexport_name} was not found: set it (headers of TensorRT are in its archive and in its "
                        "public repository under include/, those of the CUDA runtime in the toolkit), or leave this "
                        "back end out")
  endif()
endforeach()
target_include_directories(blockexport_tensorrt SYSTEM INTERFACE
  ${TENSORRT_INCLUDE_DIR} ${CUDART_INCLUDE_DIR} ${CUDA_CRT_INCLUDE_DIR})
target_link_libraries(blockexport_tensorrt INTERFACE ${TENSORRT_LIBRARY} ${CUDART_LIBRARY})
