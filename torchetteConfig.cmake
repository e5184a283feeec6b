# SPDX-License-Identifier: BSD-3-Clause
# find_package(torchette): torchette::static and torchette::shared, both of everything; torchette::torchette, the one that
# BUILD_SHARED_LIBS asks for; torchette::compat, ExecuTorch's include paths. Plain target_link_libraries is enough.
include(${CMAKE_CURRENT_LIST_DIR}/torchetteTargets.cmake)
if(NOT TARGET torchette::torchette)
  add_library(torchette::torchette INTERFACE IMPORTED)
  if(BUILD_SHARED_LIBS)
    target_link_libraries(torchette::torchette INTERFACE torchette::shared)
  else()
    target_link_libraries(torchette::torchette INTERFACE torchette::static)
  endif()
endif()
