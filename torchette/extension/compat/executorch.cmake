# SPDX-License-Identifier: BSD-3-Clause
# Writes the compatibility folder with ExecuTorch's header paths. Each header has three lines, which include Torchette's
# header. The list below has a line per header: its path under executorch/ and the header that it includes. To run the file
# as a script: cmake -DDESTINATION=<folder> -P executorch.cmake

set(torchette_compat
  devtools/bundled_program/bundled_program.h              compat/bundled_program.h
  devtools/etdump/data_sinks/buffer_data_sink.h           compat/etdump.h
  devtools/etdump/data_sinks/data_sink_base.h             compat/etdump.h
  devtools/etdump/data_sinks/file_data_sink.h             compat/etdump.h
  devtools/etdump/etdump_flatcc.h                         compat/etdump.h
  extension/aten_util/aten_bridge.h                       compat/aten_bridge.h
  extension/aten_util/make_aten_functor_from_et_functor.h aten.h
  extension/data_loader/buffer_data_loader.h              buffer_data_loader.h
  extension/data_loader/file_data_loader.h                file_data_loader.h
  extension/data_loader/file_descriptor_data_loader.h     file_data_loader.h
  extension/data_loader/mmap_data_loader.h                mmap_data_loader.h
  extension/data_loader/shared_ptr_data_loader.h          shared_ptr_data_loader.h
  extension/evalue_util/print_evalue.h                    print_value.h
  extension/flat_tensor/flat_tensor_data_map.h            flat_tensor.h
  extension/flat_tensor/serialize/serialize.h             training/checkpoint.h
  extension/kernel_util/make_boxed_from_unboxed_functor.h compat/kernel.h
  extension/memory_allocator/malloc_memory_allocator.h    malloc_memory_allocator.h
  extension/module/bundled_module.h                       compat/module.h
  extension/module/module.h                               compat/module.h
  extension/pytree/pytree.h                               pytree.h
  extension/runner_util/inputs.h                          prepare_inputs.h
  extension/tensor/tensor.h                               compat/tensor.h
  extension/tensor/tensor_accessor.h                      tensor_accessor.h
  extension/tensor/tensor_ptr.h                           compat/tensor.h
  extension/tensor/tensor_ptr_maker.h                     compat/tensor.h
  extension/testing_util/temp_file.h                      testing.h
  extension/threadpool/threadpool.h                       thread_pool.h
  extension/training/module/training_module.h             training/training_module.h
  extension/training/optimizer/sgd.h                      training/optimizer.h
  runtime/backend/backend_execution_context.h             compat/runtime.h
  runtime/backend/backend_init_context.h                  compat/runtime.h
  runtime/backend/backend_option_context.h                compat/runtime.h
  runtime/backend/interface.h                             compat/runtime.h
  runtime/backend/options.h                               compat/runtime.h
  runtime/core/array_ref.h                                compat/runtime.h
  runtime/core/data_loader.h                              compat/runtime.h
  runtime/core/defines.h                                  compat/runtime.h
  runtime/core/error.h                                    compat/runtime.h
  runtime/core/evalue.h                                   compat/runtime.h
  runtime/core/event_tracer.h                             compat/runtime.h
  runtime/core/event_tracer_hooks.h                       compat/runtime.h
  runtime/core/event_tracer_hooks_delegate.h              compat/runtime.h
  runtime/core/exec_aten/exec_aten.h                      compat/runtime.h
  runtime/core/exec_aten/testing_util/tensor_factory.h    testing.h
  runtime/core/exec_aten/testing_util/tensor_util.h       testing.h
  runtime/core/exec_aten/util/dim_order_util.h            compat/dim_order.h
  runtime/core/exec_aten/util/scalar_type_util.h          compat/kernel.h
  runtime/core/exec_aten/util/tensor_dimension_limit.h    compat/dim_order.h
  runtime/core/exec_aten/util/tensor_shape_to_c_string.h  compat/dim_order.h
  runtime/core/exec_aten/util/tensor_util.h               compat/kernel.h
  runtime/core/freeable_buffer.h                          compat/runtime.h
  runtime/core/hierarchical_allocator.h                   compat/runtime.h
  runtime/core/memory_allocator.h                         compat/runtime.h
  runtime/core/named_data_map.h                           compat/runtime.h
  runtime/core/portable_type/bfloat16.h                   compat/runtime.h
  runtime/core/portable_type/device.h                     compat/tensor.h
  runtime/core/portable_type/half.h                       compat/runtime.h
  runtime/core/portable_type/optional.h                   compat/runtime.h
  runtime/core/portable_type/scalar.h                     compat/runtime.h
  runtime/core/portable_type/scalar_type.h                compat/runtime.h
  runtime/core/portable_type/string_view.h                compat/runtime.h
  runtime/core/portable_type/tensor.h                     compat/runtime.h
  runtime/core/portable_type/tensor_impl.h                compat/runtime.h
  runtime/core/result.h                                   compat/runtime.h
  runtime/core/span.h                                     compat/runtime.h
  runtime/core/tag.h                                      compat/runtime.h
  runtime/core/tensor_layout.h                            compat/runtime.h
  runtime/core/tensor_shape_dynamism.h                    compat/runtime.h
  runtime/executor/memory_manager.h                       compat/runtime.h
  runtime/executor/method.h                               compat/runtime.h
  runtime/executor/method_meta.h                          compat/runtime.h
  runtime/executor/program.h                              compat/runtime.h
  runtime/kernel/kernel_includes.h                        compat/kernel.h
  runtime/kernel/kernel_runtime_context.h                 compat/kernel.h
  runtime/kernel/operator_registry.h                      compat/kernel.h
  runtime/kernel/thread_parallel_interface.h              thread_pool.h
  runtime/platform/abort.h                                compat/runtime.h
  runtime/platform/assert.h                               compat/runtime.h
  runtime/platform/clock.h                                compat/runtime.h
  runtime/platform/compiler.h                             compat/runtime.h
  runtime/platform/log.h                                  compat/runtime.h
  runtime/platform/platform.h                             compat/runtime.h
  runtime/platform/profiler.h                             compat/profiler.h
  runtime/platform/runtime.h                              compat/runtime.h
  runtime/platform/system.h                               compat/system.h
  runtime/platform/types.h                                compat/runtime.h
)
if(NOT SKBUILD)  # a wheel lacks the headers of torchette/llm
  list(APPEND torchette_compat
    extension/asr/runner/runner.h                  llm/engine/asr_runner.h
    extension/llm/runner/audio.h                   llm/media/audio.h
    extension/llm/runner/image.h                   llm/media/image.h
    extension/llm/runner/irunner.h                 llm/engine/irunner.h
    extension/llm/runner/llm_runner_helper.h       llm/engine/multimodal_runner.h
    extension/llm/runner/multimodal_input.h        llm/media/multimodal_input.h
    extension/llm/runner/multimodal_runner.h       llm/engine/multimodal_runner.h
    extension/llm/runner/stats.h                   llm/engine/stats.h
    extension/llm/runner/text_llm_runner.h         llm/engine/text_llm_runner.h
  )
endif()

# Writes the folder `executorch` to `destination`, an include path. Files with the right contents keep their timestamps.
function(torchette_write_compat destination)
  list(LENGTH torchette_compat count)
  math(EXPR last "${count} - 1")
  foreach(i RANGE 0 ${last} 2)
    math(EXPR j "${i} + 1")
    list(GET torchette_compat ${i} theirs)
    list(GET torchette_compat ${j} ours)
    if(NOT ours MATCHES "^llm/")
      string(PREPEND ours "extension/")
    endif()
    set(text "#pragma once\n#include \"torchette/extension/compat/runtime.h\"\n#include \"torchette/${ours}\"\n")
    file(CONFIGURE OUTPUT ${destination}/executorch/${theirs} CONTENT "${text}" @ONLY)
  endforeach()
endfunction()

if(CMAKE_SCRIPT_MODE_FILE AND DEFINED DESTINATION)
  torchette_write_compat(${DESTINATION})
endif()
