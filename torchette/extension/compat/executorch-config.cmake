# SPDX-License-Identifier: BSD-3-Clause
# find_package(executorch): finds the package torchette under ExecuTorch's names. targets.cmake is next to the headers.
include(${CMAKE_CURRENT_LIST_DIR}/../torchette/torchetteConfig.cmake)
get_target_property(EXECUTORCH_INCLUDE_DIRS torchette::compat INTERFACE_INCLUDE_DIRECTORIES)
foreach(torchette_folder IN LISTS EXECUTORCH_INCLUDE_DIRS)
  include(${torchette_folder}/targets.cmake OPTIONAL)
endforeach()
unset(torchette_folder)
set(EXECUTORCH_FOUND ON)
set(EXECUTORCH_LIBRARIES executorch)
