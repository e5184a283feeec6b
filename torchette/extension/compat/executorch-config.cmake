# SPDX-License-Identifier: BSD-3-Clause
# find_package(executorch): the package torchette, under ExecuTorch's names.
include(${CMAKE_CURRENT_LIST_DIR}/../torchette/torchetteConfig.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/targets.cmake)
set(EXECUTORCH_FOUND ON)
set(EXECUTORCH_LIBRARIES executorch)
get_target_property(EXECUTORCH_INCLUDE_DIRS torchette::compat INTERFACE_INCLUDE_DIRECTORIES)
