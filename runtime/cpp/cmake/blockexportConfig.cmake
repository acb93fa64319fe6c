# find_package(blockexport): the package is source and is built inside the project that asks for it.
if(NOT TARGET blockexport::blockexport)
  add_subdirectory(${CMAKE_CURRENT_LIST_DIR}/.. ${CMAKE_BINARY_DIR}/blockexport EXCLUDE_FROM_ALL)
endif()
set(blockexport_FOUND TRUE)
