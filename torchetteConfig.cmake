# SPDX-License-Identifier: BSD-3-Clause
# find_package(torchette): torchette::shared and torchette::static, both of everything; torchette::torchette, the one that
# BUILD_SHARED_LIBS asks for, or the one that there is; torchette::compat, ExecuTorch's include paths. Plain
# target_link_libraries is enough. A wheel has the shared library alone.
include(${CMAKE_CURRENT_LIST_DIR}/torchetteTargets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/torchetteLlmTargets.cmake OPTIONAL)  # torchette::llm, torchette::llm_shared
set(torchette_kind static)
if(BUILD_SHARED_LIBS OR NOT TARGET torchette::static)
  set(torchette_kind shared)
endif()
if(NOT TARGET torchette::torchette)
  add_library(torchette::torchette INTERFACE IMPORTED)
  target_link_libraries(torchette::torchette INTERFACE torchette::${torchette_kind})
endif()
unset(torchette_kind)
if(TARGET torchette::llm)
  target_link_libraries(torchette::llm INTERFACE torchette::torchette)
endif()
foreach(torchette_component ${torchette_FIND_COMPONENTS})
  if(NOT TARGET torchette::${torchette_component} AND torchette_FIND_REQUIRED_${torchette_component})
    set(torchette_FOUND FALSE)
    set(torchette_NOT_FOUND_MESSAGE "this package has no torchette::${torchette_component}. A wheel has the shared library \
alone; `torchette build --target host -o DIR` compiles the static one for you (find_package(torchette) with DIR as its \
prefix), and so does `cmake --install` of a checkout.")
  endif()
endforeach()
unset(torchette_component)
