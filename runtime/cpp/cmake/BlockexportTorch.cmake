# Target blockexport_torch: libtorch as its Python wheel or a libtorch archive holds it. Only what runs an AOTInductor
# package is linked: libtorch_cpu and libc10 (and libtorch_cuda, libc10_cuda where they are).
set(BLOCKEXPORT_TORCH_DIR "" CACHE PATH "Folder of torch: holds include/ and lib/")
add_library(blockexport_torch INTERFACE)

find_path(BLOCKEXPORT_TORCH_INCLUDE_DIR torch/csrc/inductor/aoti_package/model_package_loader.h
          HINTS ${BLOCKEXPORT_TORCH_DIR}/include NO_DEFAULT_PATH DOC "libtorch's headers")
if(NOT BLOCKEXPORT_TORCH_INCLUDE_DIR)
  message(FATAL_ERROR
    "libtorch was not found in BLOCKEXPORT_TORCH_DIR (${BLOCKEXPORT_TORCH_DIR}). Set it to the folder that "
    "`python -c 'import torch; print(torch.__path__[0])'` prints, or to an unpacked libtorch, or leave this back end "
    "out with -DBLOCKEXPORT_WITH_AOTI=OFF")
endif()
target_include_directories(blockexport_torch SYSTEM INTERFACE
  ${BLOCKEXPORT_TORCH_INCLUDE_DIR}
  ${BLOCKEXPORT_TORCH_INCLUDE_DIR}/torch/csrc/api/include)
foreach(_blockexport_name torch_cpu c10 torch_cuda c10_cuda)
  find_library(BLOCKEXPORT_${_blockexport_name}_LIBRARY ${_blockexport_name}
               HINTS ${BLOCKEXPORT_TORCH_INCLUDE_DIR}/../lib NO_DEFAULT_PATH)
  mark_as_advanced(BLOCKEXPORT_${_blockexport_name}_LIBRARY)
  if(BLOCKEXPORT_${_blockexport_name}_LIBRARY)
    target_link_libraries(blockexport_torch INTERFACE ${BLOCKEXPORT_${_blockexport_name}_LIBRARY})
  elseif(NOT _blockexport_name MATCHES "cuda")
    message(FATAL_ERROR "lib${_blockexport_name} is missing beside ${BLOCKEXPORT_TORCH_INCLUDE_DIR}: the libtorch is incomplete")
  endif()
endforeach()
