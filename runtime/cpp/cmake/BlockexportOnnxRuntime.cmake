# Target blockexport_onnxruntime, from the first of:
#   - a target onnxruntime::onnxruntime that your project made,
#   - ONNXRUNTIME_INCLUDE_DIR (the folder of onnxruntime_cxx_api.h) and ONNXRUNTIME_LIBRARY, given or found,
#   - find_package(onnxruntime), which a full installation brings.
add_library(blockexport_onnxruntime INTERFACE)

if(NOT TARGET onnxruntime::onnxruntime)
  find_path(ONNXRUNTIME_INCLUDE_DIR onnxruntime_cxx_api.h
            PATH_SUFFIXES onnxruntime onnxruntime/core/session
            DOC "Folder of onnxruntime_cxx_api.h")
  find_library(ONNXRUNTIME_LIBRARY onnxruntime DOC "ONNX Runtime's shared library; the one in a Python wheel will do")
endif()

if(TARGET onnxruntime::onnxruntime)
  target_link_libraries(blockexport_onnxruntime INTERFACE onnxruntime::onnxruntime)
elseif(ONNXRUNTIME_INCLUDE_DIR AND ONNXRUNTIME_LIBRARY)
  set(_blockexport_library ${ONNXRUNTIME_LIBRARY})
  get_filename_component(_blockexport_name ${ONNXRUNTIME_LIBRARY} NAME)
  if(_blockexport_name MATCHES "^libonnxruntime\\.so\\.[0-9]+\\.")
    # A wheel holds the library under its full version; programs look for it under its major version.
    set(_blockexport_library ${CMAKE_BINARY_DIR}/onnxruntime/libonnxruntime.so.1)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/onnxruntime)
    file(CREATE_LINK ${ONNXRUNTIME_LIBRARY} ${_blockexport_library} SYMBOLIC)
    # GPU providers are looked for beside the library.
    get_filename_component(_blockexport_folder ${ONNXRUNTIME_LIBRARY} DIRECTORY)
    file(GLOB _blockexport_providers ${_blockexport_folder}/libonnxruntime_providers_*.so)
    foreach(_blockexport_provider IN LISTS _blockexport_providers)
      get_filename_component(_blockexport_name ${_blockexport_provider} NAME)
      file(CREATE_LINK ${_blockexport_provider} ${CMAKE_BINARY_DIR}/onnxruntime/${_blockexport_name} SYMBOLIC)
    endforeach()
  endif()
  add_library(blockexport_onnxruntime_library SHARED IMPORTED GLOBAL)
  set_target_properties(blockexport_onnxruntime_library PROPERTIES
    IMPORTED_LOCATION ${_blockexport_library}
    INTERFACE_INCLUDE_DIRECTORIES ${ONNXRUNTIME_INCLUDE_DIR})
  target_link_libraries(blockexport_onnxruntime INTERFACE blockexport_onnxruntime_library)
else()
  find_package(onnxruntime CONFIG QUIET)
  if(NOT TARGET onnxruntime::onnxruntime)
    message(FATAL_ERROR
      "ONNX Runtime was not found (headers: ${ONNXRUNTIME_INCLUDE_DIR}, library: ${ONNXRUNTIME_LIBRARY}). Set "
      "ONNXRUNTIME_INCLUDE_DIR to the folder of onnxruntime_cxx_api.h (Debian: libonnxruntime-dev) and "
      "ONNXRUNTIME_LIBRARY to libonnxruntime.so, 1.25 or later (the one in the Python wheel, onnxruntime/capi; Debian 13's "
      "is 1.21 and lacks TensorScatter), or leave this "
      "back end out with -DBLOCKEXPORT_WITH_ONNXRUNTIME=OFF")
  endif()
  target_link_libraries(blockexport_onnxruntime INTERFACE onnxruntime::onnxruntime)
endif()
