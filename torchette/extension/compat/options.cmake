# SPDX-License-Identifier: BSD-3-Clause
# Options under ExecuTorch's names: theirs -> ours; after these, what the others mean here
set(known_names "^(LOG_LEVEL|PAL_DEFAULT|BUILD_PYBIND|BUILD_TESTS|BUILD_EXECUTOR_RUNNER|BUILD_EXTENSION_LLM_RUNNER|ENABLE_EVENT_TRACER|USE_SANITIZER)$")
set(theirs_and_ours LOG_LEVEL LOG_LEVEL PAL_DEFAULT PLATFORM BUILD_PYBIND BUILD_PYTHON BUILD_TESTS BUILD_TESTS
                    BUILD_EXECUTOR_RUNNER BUILD_EXECUTOR_RUNNER BUILD_EXTENSION_LLM_RUNNER BUILD_LLM ENABLE_EVENT_TRACER EVENT_TRACER USE_SANITIZER SANITIZE)
while(theirs_and_ours)
  list(POP_FRONT theirs_and_ours theirs ours)
  if(DEFINED EXECUTORCH_${theirs} AND NOT DEFINED TORCHETTE_${ours})
    set(TORCHETTE_${ours} ${EXECUTORCH_${theirs}} CACHE STRING "from EXECUTORCH_${theirs}")
  endif()
endwhile()
if(DEFINED EXECUTORCH_ENABLE_LOGGING AND NOT EXECUTORCH_ENABLE_LOGGING)
  set(TORCHETTE_LOG_LEVEL 0 CACHE STRING "from EXECUTORCH_ENABLE_LOGGING")
endif()
set(part_of_the_library "is part of the library: the linker drops what a program does not call")
set(other_options
  "BUILD_(EXTENSION_(DATA_LOADER|EVALUE_UTIL|FLAT_TENSOR|MODULE|NAMED_DATA_MAP|RUNNER_UTIL|TENSOR)|DEVTOOLS|PTHREADPOOL|CPUINFO)"
  "${part_of_the_library}"
  "ENABLE_BUNDLE_IO" "${part_of_the_library}"
  "BUILD_(PORTABLE_OPS|KERNELS_(OPTIMIZED|QUANTIZED|LLM|TORCHAO))"
  "${part_of_the_library}, `torchette build` those that models need"
  "BUILD_KERNELS_(QUANTIZED|LLM|CUSTOM)_AOT" "the compiler needs no library of operators"
  "BUILD_EXTENSION_TRAINING" "is headers: torchette/extension/training"
  "BUILD_EXTENSION_LLM" "comes with BUILD_EXTENSION_LLM_RUNNER"
  "BUILD_EXTENSION_(APPLE|ETDUMP_APPLE|LLM_APPLE)" "torchette/extension/swift is a package of its own"
  "BUILD_ANDROID_JNI" "torchette/extension/java is a project of its own"
  "BUILD_EXTENSION_(ASR_RUNNER|IMAGE)" "there is no such part"
  "BUILD_SHARED" "the library is always built, as torchette::shared"
  "BUILD_(SIZE_TEST|WHEEL_DO_NOT_USE|GFLAGS|HOST_TARGETS|GTESTS|CMSIS_NN_PYBINDS)" "nothing depends on it: see ./dev --help"
  "BUILD_XNNPACK" "-DTORCHETTE_XNNPACK_DIR names what `./dev xnnpack` has built, without it our kernels run its files"
  "XNNPACK_.*" "is no choice of the build, see torchette/backends/xnnpack/README.md"
  "BUILD_VULKAN" "is compiled wherever the system has a loader of shared libraries"
  "USE_DL" "is used wherever the system has it"
  "BUILD_(WASM|TOKENIZERS_WASM|ARM_BAREMETAL|CORTEX_M)" "is a preset, see cmake --list-presets, or `torchette build --target`"
  "(ENABLE_PROGRAM_VERIFICATION|USE_CPP_CODE_COVERAGE)" "verification is always there"
  "OPTIMIZE_SIZE" "the core is always built for size, -DCMAKE_BUILD_TYPE=MinSizeRel does so with the rest"
  "(SELECT_.*|ENABLE_DTYPE_SELECTIVE_BUILD)" "-DTORCHETTE_SELECTION names what `torchette build` writes"
  "(FLATC_EXECUTABLE|FLATBUFFERS_MAX_ALIGNMENT)" "neither flatc nor the library of flatbuffers is needed"
  "PAL_DEFAULT_FILE_PATH" "a platform is torchette/runtime/platform_NAME.cpp: -DTORCHETTE_PLATFORM=NAME"
  "THREADPOOL_USE_.*" "is chosen at run time: set_num_threads()"
  "(BUILD_(COREML|COREAI|MPS|QNN|NEURON|OPENVINO|CADENCE|SAMSUNG|ENN|CUDA|ROCM|METAL|AOTI|MLX|NXP|VGF|(ARM_)?ETHOS|WEBGPU)|COREML_|MLX_|METAL_|NNLIB_|CADENCE_).*"
  "there is no such backend")
get_cmake_property(given CACHE_VARIABLES)
list(FILTER given INCLUDE REGEX "^EXECUTORCH_")
foreach(option IN LISTS given)
  string(REPLACE EXECUTORCH_ "" theirs ${option})
  if(NOT ${option} OR theirs STREQUAL "ENABLE_LOGGING" OR theirs MATCHES "${known_names}")
    continue()
  endif()
  set(answer "there is no such option")
  set(pairs ${other_options})
  while(pairs)
    list(POP_FRONT pairs pattern text)
    if(theirs MATCHES "^${pattern}$")
      set(answer "${text}")
      break()
    endif()
  endwhile()
  message(STATUS "${option}: ${answer}")
endforeach()
