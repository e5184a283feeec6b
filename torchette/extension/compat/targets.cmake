# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's names in CMake: its targets, which are all aliases of Torchette's library, and its functions for kernels.
# Included by find_package(executorch) and by a build of the sources.

# --- Targets. After gen_selected_ops() they select the library with only the selected kernels.
foreach(name executorch executorch_core prim_ops_lib portable_kernels portable_ops_lib optimized_kernels optimized_ops_lib
             optimized_portable_kernels optimized_native_cpu_ops_lib quantized_kernels quantized_ops_lib custom_ops
             xnnpack_backend vulkan_backend extension_data_loader extension_module extension_module_static
             extension_tensor extension_flat_tensor extension_named_data_map extension_runner_util
             extension_evalue_util extension_memory_allocator extension_threadpool extension_training etdump
             bundled_program executorch::backends executorch::extensions executorch::kernels executorch::runtime
             executorch::kernels_optimized executorch::kernels_quantized executorch::backend_xnnpack
             executorch::threadpool executorch::etdump)
  if(NOT TARGET ${name})
    add_library(${name} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(${name} INTERFACE
      $<IF:$<TARGET_EXISTS:torchette_selected>,torchette_selected,torchette::torchette> torchette::compat)
  endif()
endforeach()
foreach(name extension_llm_runner tokenizers::tokenizers)  # a wheel has no language models
  if(TARGET torchette::llm AND NOT TARGET ${name})
    add_library(${name} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(${name} INTERFACE torchette::llm torchette::compat)
  endif()
endforeach()

# --- Functions
# Links all of a static library, so that kernels that it registers at program start are linked without a reference.
function(executorch_target_link_options_shared_lib target)
  if(APPLE)
    target_link_options(${target} INTERFACE "SHELL:LINKER:-force_load,$<TARGET_FILE:${target}>")
  else()
    target_link_options(${target} INTERFACE
      "SHELL:LINKER:--whole-archive $<TARGET_FILE:${target}> LINKER:--no-whole-archive")
  endif()
endfunction()
function(target_link_options_shared_lib target)  # an older name of the function
  executorch_target_link_options_shared_lib(${target})
endfunction()
function(target_link_options_gc_sections target)
  target_link_options(${target} PRIVATE $<IF:$<PLATFORM_ID:Darwin>,LINKER:-dead_strip,LINKER:--gc-sections>)
endfunction()

# Runs Python with the package torchette. If that fails, the message starts with `purpose`.
function(torchette_python purpose code)
  if(NOT Python_EXECUTABLE)
    set(Python_FIND_VIRTUALENV FIRST)
    find_package(Python 3.10 QUIET COMPONENTS Interpreter)
  endif()
  if(NOT Python_EXECUTABLE)
    message(FATAL_ERROR "${purpose} needs Python 3.10 with the package torchette: select one with -DPython_EXECUTABLE")
  endif()
  set(where ${CMAKE_COMMAND} -E env)
  if(torchette_SOURCE_DIR)
    list(APPEND where PYTHONPATH=${torchette_SOURCE_DIR})
  endif()
  string(PREPEND code "import sys; from pathlib import Path
sys.excepthook = lambda kind, error, _: print(f'{kind.__name__}: {error}', file=sys.stderr)\n")
  execute_process(COMMAND ${where} ${Python_EXECUTABLE} -c "${code}" ${ARGN}
                  OUTPUT_QUIET ERROR_VARIABLE said RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${purpose}, with ${Python_EXECUTABLE}: ${said}")
  endif()
endfunction()

# gen_selected_ops(LIB_NAME name [OPS_SCHEMA_YAML file] [ROOT_OPS a,b] [OPS_FROM_MODEL files] [INCLUDE_ALL_OPS ON]
# [DTYPE_SELECTIVE_BUILD ON]): compiles the library with these kernels, for this machine, while CMake configures. A
# second call replaces the first.
function(gen_selected_ops)
  cmake_parse_arguments(GEN "" "" "LIB_NAME;OPS_SCHEMA_YAML;ROOT_OPS;INCLUDE_ALL_OPS;OPS_FROM_MODEL;DTYPE_SELECTIVE_BUILD" ${ARGN})
  if(NOT GEN_LIB_NAME)
    message(FATAL_ERROR "gen_selected_ops: LIB_NAME is missing")
  endif()
  if(GEN_INCLUDE_ALL_OPS)
    return()  # the library has all kernels
  endif()
  if(torchette_SOURCE_DIR)
    message(FATAL_ERROR "gen_selected_ops: a build of the sources selects by -DEXECUTORCH_SELECT_OPS_MODEL, _LIST or _YAML")
  elseif(CMAKE_CROSSCOMPILING)
    message(FATAL_ERROR "gen_selected_ops compiles for this machine; `torchette build --target NAME model.pte -o DIR` "
                        "compiles for another one, and find_package(torchette) finds DIR")
  elseif(GEN_DTYPE_SELECTIVE_BUILD AND NOT GEN_OPS_FROM_MODEL)
    message(FATAL_ERROR "gen_selected_ops: DTYPE_SELECTIVE_BUILD needs OPS_FROM_MODEL, which determines the dtypes to keep")
  endif()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${GEN_LIB_NAME})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${GEN_OPS_FROM_MODEL} ${GEN_OPS_SCHEMA_YAML})
  list(JOIN GEN_OPS_FROM_MODEL "," models)
  list(JOIN GEN_ROOT_OPS "," operators)
  list(JOIN GEN_OPS_SCHEMA_YAML "," lists)
  message(STATUS "${GEN_LIB_NAME}: compiling the selected kernels")
  torchette_python(gen_selected_ops
    "from torchette import targets; from torchette.build import kernel_list, make
chosen = kernel_list.selected(*(word.partition('=')[2] for word in sys.argv[2:]))
if chosen.operators: make.make(targets.find('host'), chosen, Path(sys.argv[1]))
else: Path(sys.argv[1], 'lib', 'libtorchette.a').unlink(missing_ok=True)"
    ${folder} models=${models} operators=${operators} lists=${lists} dtypes=${GEN_DTYPE_SELECTIVE_BUILD})
  if(EXISTS ${folder}/lib/libtorchette.a)  # absent if all operators are custom operators of the project
    if(NOT TARGET torchette_selected)
      add_library(torchette_selected STATIC IMPORTED GLOBAL)
    endif()
    set_target_properties(torchette_selected PROPERTIES
      IMPORTED_LOCATION ${folder}/lib/libtorchette.a
      INTERFACE_INCLUDE_DIRECTORIES ${folder}/include
      INTERFACE_COMPILE_DEFINITIONS "TORCHETTE_LOG_LEVEL=2;TORCHETTE_EVENT_TRACER=1"
      INTERFACE_COMPILE_FEATURES cxx_std_17)
  endif()
endfunction()

# generate_bindings_for_kernels(LIB_NAME name [FUNCTIONS_YAML file] [CUSTOM_OPS_YAML file]): the registration of the
# kernels in these lists, for gen_operators_lib(). Names the source in gen_command_sources. Kernels in the lists of
# ExecuTorch itself are in the library.
function(generate_bindings_for_kernels)
  cmake_parse_arguments(GEN "ADD_EXCEPTION_BOUNDARY" "LIB_NAME;FUNCTIONS_YAML;CUSTOM_OPS_YAML;DTYPE_SELECTIVE_BUILD" "" ${ARGN})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${GEN_LIB_NAME})
  set(sources)
  if(GEN_FUNCTIONS_YAML OR GEN_CUSTOM_OPS_YAML)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${GEN_FUNCTIONS_YAML} ${GEN_CUSTOM_OPS_YAML})
    torchette_python(generate_bindings_for_kernels
      "from torchette.build import kernel_list
kernel_list.write(sys.argv[2:], Path(sys.argv[1]), own=True)"
      ${folder} ${GEN_FUNCTIONS_YAML} ${GEN_CUSTOM_OPS_YAML})
    set(sources ${folder}/RegisterKernels.cpp)
  endif()
  set_property(GLOBAL PROPERTY torchette_bindings_of_${GEN_LIB_NAME} ${sources})
  set(gen_command_sources ${sources} PARENT_SCOPE)
endfunction()

# gen_operators_lib(LIB_NAME name [KERNEL_LIBS targets] [DEPS targets]): a library that registers the kernels of
# generate_bindings_for_kernels(), and links those of gen_selected_ops().
function(gen_operators_lib)
  cmake_parse_arguments(GEN "" "" "LIB_NAME;KERNEL_LIBS;DEPS;DTYPE_SELECTIVE_BUILD" ${ARGN})
  get_property(sources GLOBAL PROPERTY torchette_bindings_of_${GEN_LIB_NAME})
  if(sources)
    add_library(${GEN_LIB_NAME} STATIC ${sources})
    target_include_directories(${GEN_LIB_NAME} PUBLIC ${CMAKE_CURRENT_BINARY_DIR}/${GEN_LIB_NAME})
    target_link_libraries(${GEN_LIB_NAME} PUBLIC ${GEN_KERNEL_LIBS} ${GEN_DEPS} executorch_core)
    executorch_target_link_options_shared_lib(${GEN_LIB_NAME})
  else()
    add_library(${GEN_LIB_NAME} INTERFACE)
    target_link_libraries(${GEN_LIB_NAME} INTERFACE ${GEN_KERNEL_LIBS} ${GEN_DEPS} executorch_core)
  endif()
endfunction()

# merge_yaml(FUNCTIONS_YAML file FALLBACK_YAML file OUTPUT_DIR folder): merged.yaml, with the entries of the first list, and
# those of the second list for other operators.
function(merge_yaml)
  cmake_parse_arguments(GEN "" "FUNCTIONS_YAML;FALLBACK_YAML;OUTPUT_DIR" "" ${ARGN})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${GEN_FUNCTIONS_YAML} ${GEN_FALLBACK_YAML})
  torchette_python(merge_yaml
    "from torchette.build import kernel_list
kernel_list.merge(sys.argv[2], sys.argv[3], Path(sys.argv[1]))"
    ${GEN_OUTPUT_DIR}/merged.yaml ${GEN_FUNCTIONS_YAML} ${GEN_FALLBACK_YAML})
endfunction()

function(gen_custom_ops_aot_lib)
  message(FATAL_ERROR "gen_custom_ops_aot_lib: `torchette custom build FILE.cpp` makes a library of operators for torch and "
                      "the runtime, which torchette.load_library() loads")
endfunction()
