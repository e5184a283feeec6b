// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's spelling of the runtime: its namespaces and macros, each standing for something of
// Torchette's. Nothing is defined here that does not exist there; executorch.cmake says which of its headers
// lead here.
#pragma once

#include <sys/types.h>  // ssize_t, which kernels written for ExecuTorch use
#if defined(_MSC_VER)
#include <cstddef>
using ssize_t = ptrdiff_t;
#endif

#include "torchette/extension/compat/aten.h"
#include "torchette/runtime/backend.h"
#include "torchette/runtime/kernel_registry.h"
#include "torchette/runtime/method.h"

#define TORCHETTE_RUNTIME_NAMES(X)         \
  X(AllocatorID)                           \
  X(Backend)                               \
  X(BackendExecutionContext)               \
  X(BackendInitContext)                    \
  X(BackendInterface)                      \
  X(ChainID)                               \
  X(CompileSpec)                           \
  X(DataLoader)                            \
  X(DebugHandle)                           \
  X(DelegateDebugIdType)                   \
  X(DelegateDebugIntId)                    \
  X(DelegateHandle)                        \
  X(Error)                                 \
  X(EValue)                                \
  X(EventTracer)                           \
  X(EventTracerDebugLogLevel)              \
  X(EventTracerEntry)                      \
  X(EventTracerFilterBase)                 \
  X(EventTracerProfilingLevel)             \
  X(FreeableBuffer)                        \
  X(HierarchicalAllocator)                 \
  X(LoggedEValueType)                      \
  X(MemoryAllocator)                       \
  X(MemoryManager)                         \
  X(Method)                                \
  X(MethodMeta)                            \
  X(NamedDataMap)                          \
  X(PalImpl)                               \
  X(Program)                               \
  X(Result)                                \
  X(Span)                                  \
  X(Tag)                                   \
  X(TensorInfo)                            \
  X(TensorLayout)                          \
  X(event_tracer_end_profiling_delegate)   \
  X(event_tracer_log_output_delegate)      \
  X(event_tracer_log_profiling_delegate)   \
  X(event_tracer_start_profiling_delegate) \
  X(get_backend_class)                     \
  X(get_backend_name)                      \
  X(get_num_registered_backends)           \
  X(kUnsetBundledInputIndex)               \
  X(kUnsetChainId)                         \
  X(kUnsetDebugHandle)                     \
  X(kUnsetDelegateDebugIntId)              \
  X(register_backend)                      \
  X(register_pal)                          \
  X(runtime_init)

namespace torchette::extension {}  // namespace torchette::extension

#define TORCHETTE_USE(name) using ::torchette::name;
namespace executorch {
namespace runtime {
TORCHETTE_RUNTIME_NAMES(TORCHETTE_USE)
using aten::ArrayRef;
using aten::TensorShapeDynamism;
namespace internal {  // for kernels that trace
using EventTracerProfileOpScope = ::torchette::EventTracerProfileScope;
}
}  // namespace runtime
namespace extension {
using namespace ::torchette::extension;
}
}  // namespace executorch

// What the same was called before the namespace executorch was.
namespace torch::executor {
TORCHETTE_RUNTIME_NAMES(TORCHETTE_USE)
using PyTorchBackendInterface = BackendInterface;
using ::executorch::aten::ArrayRef;
using ::executorch::aten::BFloat16;
using ::executorch::aten::DimOrderType;
using ::executorch::aten::Half;
using ::executorch::aten::nullopt;
using ::executorch::aten::optional;
using ::executorch::aten::Scalar;
using ::executorch::aten::ScalarType;
using ::executorch::aten::SizesType;
using ::executorch::aten::StridesType;
using ::executorch::aten::string_view;
using ::executorch::aten::Tensor;
using ::executorch::aten::TensorImpl;
using ::executorch::aten::TensorList;
using ::executorch::aten::TensorShapeDynamism;
namespace util {
using namespace ::torchette::extension;
}
}  // namespace torch::executor
#undef TORCHETTE_USE

// --- Messages and checks. The ET_CHECK macros end the program, as in ExecuTorch; Torchette's own code has
// none.
#define ET_LOG TORCHETTE_LOG
#define ET_CHECK_MSG(condition, ...)        \
  do {                                      \
    if (TORCHETTE_UNLIKELY(!(condition))) { \
      TORCHETTE_LOG(Fatal, __VA_ARGS__);    \
      ::torchette::runtime_abort();         \
    }                                       \
  } while (0)
#define ET_CHECK(condition) ET_CHECK_MSG(condition, "%s does not hold", #condition)
#ifdef NDEBUG
#define ET_DCHECK_MSG(condition, ...) static_cast<void>(sizeof(!(condition)))
#else
#define ET_DCHECK_MSG ET_CHECK_MSG
#endif
#define ET_DCHECK(condition) ET_DCHECK_MSG(condition, "%s does not hold", #condition)
#define ET_ASSERT_UNREACHABLE() ET_CHECK_MSG(false, "this place cannot be reached")
#define ET_CHECK_OR_RETURN_ERROR(condition, error, ...) TORCHETTE_CHECK(condition, error, __VA_ARGS__)
#define ET_CHECK_OR_RETURN_FALSE(condition, ...) \
  do {                                           \
    if (!(condition)) {                          \
      TORCHETTE_LOG(Error, __VA_ARGS__);         \
      return false;                              \
    }                                            \
  } while (0)
/// A message after the expression is optional.
#define ET_CHECK_OK_OR_RETURN_ERROR(expression, ...)         \
  do {                                                       \
    const ::torchette::Error torchette_error = (expression); \
    if (torchette_error != ::torchette::Error::Ok) {         \
      TORCHETTE_LOG(Error, " " __VA_ARGS__);                 \
      return torchette_error;                                \
    }                                                        \
  } while (0)
#define ET_UNWRAP(expression, ...)           \
  ({                                         \
    auto torchette_result = (expression);    \
    if (!torchette_result.ok()) {            \
      TORCHETTE_LOG(Error, " " __VA_ARGS__); \
      return torchette_result.error();       \
    }                                        \
    std::move(*torchette_result);            \
  })

#if TORCHETTE_EVENT_TRACER && !defined(ET_EVENT_TRACER_ENABLED)
#define ET_EVENT_TRACER_ENABLED
#endif

#define ET_DEPRECATED [[deprecated]]
#define ET_INLINE TORCHETTE_INLINE
#define ET_LIKELY(expression) TORCHETTE_LIKELY(!!(expression))
#define ET_NODISCARD [[nodiscard]]
#define ET_NOINLINE TORCHETTE_NOINLINE
#define ET_UNLIKELY(expression) TORCHETTE_UNLIKELY(!!(expression))
#define ET_UNUSED [[maybe_unused]]

// --- The platform: a port that is written for ExecuTorch defines these names, and so overrides ours.
#define et_pal_init torchette_pal_init
#define et_pal_abort torchette_pal_abort
#define et_pal_current_ticks torchette_pal_current_ticks
#define et_pal_ticks_to_ns_multiplier torchette_pal_ticks_to_ns_multiplier
#define et_pal_emit_log_message torchette_pal_emit_log_message
#define et_pal_allocate torchette_pal_allocate
#define et_pal_free torchette_pal_free
using et_timestamp_t = torchette_timestamp_t;
using et_tick_ratio_t = torchette_tick_ratio_t;
using et_pal_log_level_t = torchette_log_level_t;
