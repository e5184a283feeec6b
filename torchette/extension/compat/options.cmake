# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's CMake options. First the options that have an equivalent (ExecuTorch's name -> Torchette's name), then the
# effects of the others.
set(theirs_and_ours LOG_LEVEL LOG_LEVEL PAL_DEFAULT PLATFORM PAL_DEFAULT_FILE_PATH PLATFORM_FILE BUILD_PYBIND BUILD_PYTHON
                    BUILD_TESTS BUILD_TESTS BUILD_EXECUTOR_RUNNER BUILD_EXECUTOR_RUNNER BUILD_EXTENSION_LLM_RUNNER BUILD_LLM
                    ENABLE_EVENT_TRACER EVENT_TRACER USE_SANITIZER SANITIZE)
set(known_names "^(ENABLE_LOGGING|OPTIMIZE_SIZE|SELECT_OPS_(YAML|LIST|MODEL|FROM_MODEL)|(ENABLE_)?DTYPE_SELECTIVE_BUILD")
while(theirs_and_ours)
  list(POP_FRONT theirs_and_ours theirs ours)
  string(APPEND known_names "|${theirs}")
  if(DEFINED EXECUTORCH_${theirs} AND NOT DEFINED TORCHETTE_${ours})
    set(TORCHETTE_${ours} ${EXECUTORCH_${theirs}} CACHE STRING "from EXECUTORCH_${theirs}")
  endif()
endwhile()
string(APPEND known_names ")$")
if(DEFINED EXECUTORCH_ENABLE_LOGGING AND NOT EXECUTORCH_ENABLE_LOGGING)
  set(TORCHETTE_LOG_LEVEL 0 CACHE STRING "from EXECUTORCH_ENABLE_LOGGING")
endif()
if(EXECUTORCH_OPTIMIZE_SIZE)
  set(CMAKE_BUILD_TYPE MinSizeRel)
  message(STATUS "EXECUTORCH_OPTIMIZE_SIZE: CMAKE_BUILD_TYPE is MinSizeRel")
endif()
# The selective build: Python writes the selection while CMake configures.
set(models ${EXECUTORCH_SELECT_OPS_MODEL} ${EXECUTORCH_SELECT_OPS_FROM_MODEL})
set(lists ${EXECUTORCH_SELECT_OPS_YAML})
set(select_dtypes)
if(EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD OR EXECUTORCH_DTYPE_SELECTIVE_BUILD)
  set(select_dtypes ON)
endif()
foreach(name models lists)
  set(paths)
  foreach(path ${${name}})
    get_filename_component(path ${path} ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
    list(APPEND paths ${path})
  endforeach()
  set(${name} ${paths})
endforeach()
if(models OR EXECUTORCH_SELECT_OPS_LIST OR lists)
  if(TORCHETTE_SELECTION AND NOT TORCHETTE_SELECTION STREQUAL "${PROJECT_BINARY_DIR}/selection.h")
    message(FATAL_ERROR "TORCHETTE_SELECTION and EXECUTORCH_SELECT_OPS_... both select kernels: use one of them")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${models} ${lists})
  list(JOIN models "," models)
  list(JOIN lists "," lists)
  list(JOIN EXECUTORCH_SELECT_OPS_LIST "," operators)
  torchette_python(EXECUTORCH_SELECT_OPS
    "from torchette.build import kernel_list
chosen = kernel_list.selected(*(word.partition('=')[2] for word in sys.argv[2:]))
Path(sys.argv[1]).write_text(chosen.header(), encoding='utf-8')"
    ${PROJECT_BINARY_DIR}/selection.h models=${models} operators=${operators} lists=${lists}
    dtypes=${select_dtypes})
  set(TORCHETTE_SELECTION ${PROJECT_BINARY_DIR}/selection.h CACHE FILEPATH "from EXECUTORCH_SELECT_OPS" FORCE)
elseif(select_dtypes)
  message(WARNING "EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD has no effect: it needs -DEXECUTORCH_SELECT_OPS_MODEL=model.pte")
endif()
set(part_of_the_library "the component is part of the library, and the linker drops code that a program does not call")
set(other_options
  "BUILD_(EXTENSION_(DATA_LOADER|EVALUE_UTIL|FLAT_TENSOR|MODULE|NAMED_DATA_MAP|RUNNER_UTIL|TENSOR)|DEVTOOLS|PTHREADPOOL|CPUINFO)"
  "${part_of_the_library}"
  "ENABLE_BUNDLE_IO" "${part_of_the_library}"
  "BUILD_(PORTABLE_OPS|KERNELS_(OPTIMIZED|QUANTIZED|LLM|TORCHAO))"
  "${part_of_the_library}. `torchette build` selects the kernels that models need"
  "BUILD_KERNELS_(QUANTIZED|LLM|CUSTOM)_AOT" "the compiler needs no library of operators"
  "BUILD_EXTENSION_TRAINING" "the component is header-only: torchette/extension/training"
  "BUILD_EXTENSION_(LLM|ASR_RUNNER|IMAGE)" "BUILD_EXTENSION_LLM_RUNNER builds it"
  "BUILD_EXTENSION_(APPLE|ETDUMP_APPLE|LLM_APPLE)" "torchette/extension/swift is a separate package"
  "BUILD_ANDROID_JNI" "torchette/extension/java is a separate project"
  "BUILD_SHARED" "the library is always built, as torchette::shared"
  "BUILD_(SIZE_TEST|WHEEL_DO_NOT_USE|GFLAGS|HOST_TARGETS|GTESTS|CMSIS_NN_PYBINDS)" "the option has no effect, see ./dev --help"
  "BUILD_XNNPACK" "-DTORCHETTE_XNNPACK_DIR selects the build of `./dev xnnpack`, without it Torchette's kernels run XNNPACK programs"
  "XNNPACK_.*" "the build has no such choice, see torchette/backends/xnnpack/README.md"
  "BUILD_VULKAN" "the backend is compiled if the system has a loader of shared libraries"
  "USE_DL" "the library is used if the system has it"
  "BUILD_(WASM|TOKENIZERS_WASM|ARM_BAREMETAL|CORTEX_M)" "use a preset (cmake --list-presets) or `torchette build --target`"
  "ENABLE_PROGRAM_VERIFICATION" "verification is always enabled"
  "USE_CPP_CODE_COVERAGE" "there is no equivalent, pass the flags of the compiler in CMAKE_CXX_FLAGS"
  "(FLATC_EXECUTABLE|FLATBUFFERS_MAX_ALIGNMENT)" "neither flatc nor the flatbuffers library is needed"
  "THREADPOOL_USE_.*" "select the number of threads at run time with set_num_threads()"
  "(BUILD_(COREML|COREAI|MPS|QNN|NEURON|OPENVINO|CADENCE|SAMSUNG|ENN|CUDA|ROCM|METAL|AOTI|MLX|NXP|VGF|(ARM_)?ETHOS|WEBGPU)|COREML_|MLX_|METAL_|NNLIB_|CADENCE_).*"
  "there is no such backend")
get_cmake_property(given VARIABLES)  # includes variables that a project sets before add_subdirectory()
list(FILTER given INCLUDE REGEX "^EXECUTORCH_")
foreach(option IN LISTS given)
  string(REPLACE EXECUTORCH_ "" theirs ${option})
  if(theirs MATCHES "${known_names}" OR theirs MATCHES "^(ROOT|FOUND|INCLUDE_DIRS|LIBRARIES)$")
    continue()
  endif()
  set(answer)
  set(pairs ${other_options})
  while(pairs)
    list(POP_FRONT pairs pattern text)
    if(theirs MATCHES "^${pattern}$")
      set(answer "${text}")
      break()
    endif()
  endwhile()
  if(NOT answer)
    message(WARNING "${option} has no effect: the option is unknown (docs/cpp-build.md lists the options)")
  elseif(${option} AND answer MATCHES "^there is no such")
    message(WARNING "${option} has no effect: ${answer}")
  else()
    message(STATUS "${option}: ${answer}")
  endif()
endforeach()
if(DEFINED MAX_KERNEL_NUM)
  message(STATUS "MAX_KERNEL_NUM has no effect: the number of registered kernels is not limited")
endif()
