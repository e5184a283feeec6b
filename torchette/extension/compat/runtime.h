// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's names of the runtime: its namespaces and macros, as aliases of Torchette's names.
// executorch.cmake lists the headers that include this file.
#pragma once

#include <sys/types.h>  // ssize_t, which kernels written for ExecuTorch use
#if defined(_MSC_VER)
#include <cstddef>
using ssize_t = ptrdiff_t;
#endif

#include "torchette/extension/compat/aten.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/runtime/backend_options.h"
#include "torchette/runtime/kernel_registry.h"
#include "torchette/runtime/method.h"

#define TORCHETTE_RUNTIME_NAMES(X)         \
  X(AllocatorID)                           \
  X(Backend)                               \
  X(BackendExecutionContext)               \
  X(BackendInitContext)                    \
  X(BackendInterface)                      \
  X(BackendOption)                         \
  X(BackendOptionContext)                  \
  X(BackendOptions)                        \
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
  X(Method)                                \
  X(MethodMeta)                            \
  X(NamedDataMap)                          \
  X(OptionValue)                           \
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
  X(get_option)                            \
  X(kMaxOptionKeyLength)                   \
  X(kMaxOptionValueLength)                 \
  X(kUnsetBundledInputIndex)               \
  X(kUnsetChainId)                         \
  X(kUnsetDebugHandle)                     \
  X(kUnsetDelegateDebugIntId)              \
  X(register_backend)                      \
  X(register_pal)                          \
  X(runtime_abort)                         \
  X(runtime_init)                          \
  X(set_option)

namespace torchette::extension {}  // namespace torchette::extension

#define TORCHETTE_USE(name) using ::torchette::name;
namespace executorch {
namespace runtime {
TORCHETTE_RUNTIME_NAMES(TORCHETTE_USE)
using aten::ArrayRef;
using aten::TensorShapeDynamism;
#ifndef TORCHETTE_ATEN
namespace etensor = ::executorch::aten;
#endif
namespace internal {  // for kernels that trace
using EventTracerProfileOpScope = ::torchette::EventTracerProfileScope;
}
/// Without a temp allocator, kernels use scratch memory of the platform, and the manager must outlive the
/// method. Firmware without a heap passes one or uses torchette::MemoryManager.
class MemoryManager : public ::torchette::MemoryManager {
 public:
  explicit MemoryManager(MemoryAllocator* method_allocator, HierarchicalAllocator* planned_memory = nullptr,
                         MemoryAllocator* temp_allocator = nullptr)
      : ::torchette::MemoryManager(method_allocator, planned_memory,
                                   temp_allocator != nullptr ? temp_allocator : &scratch_) {}
  MemoryManager(const MemoryManager&) = delete;
  MemoryManager& operator=(const MemoryManager&) = delete;

 private:
  ::torchette::extension::MallocMemoryAllocator scratch_;
};
inline constexpr size_t kTensorDimensionLimit = ::torchette::kMaxDim;
inline uint64_t ticks_to_ns(torchette_timestamp_t ticks) {
  const torchette_tick_ratio_t ratio = ::torchette::ticks_to_ns_multiplier();
  return ticks * ratio.numerator / ratio.denominator;
}
// The functions of register_pal() or, without it, the linked ones.
inline void pal_init() { ::torchette::runtime_init(); }
[[noreturn]] inline void pal_abort() { ::torchette::runtime_abort(); }
inline torchette_timestamp_t pal_current_ticks() { return ::torchette::current_ticks(); }
inline torchette_tick_ratio_t pal_ticks_to_ns_multiplier() { return ::torchette::ticks_to_ns_multiplier(); }
inline void* pal_allocate(size_t size) { return ::torchette::platform_allocate(size); }
inline void pal_free(void* memory) { ::torchette::platform_free(memory); }
}  // namespace runtime
namespace extension {
using namespace ::torchette::extension;
}
}  // namespace executorch

// Older names, from before the namespace executorch.
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
using ::executorch::runtime::MemoryManager;
using ::executorch::runtime::ticks_to_ns;
namespace util {
using namespace ::torchette::extension;
}
}  // namespace torch::executor
#undef TORCHETTE_USE

// --- Messages and checks. The ET_CHECK macros end the program, as in ExecuTorch. Torchette's code does not
// use them.
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
#define ET_ASSERT_UNREACHABLE() ET_CHECK_MSG(false, "unreachable code was reached")
#define ET_ASSERT_UNREACHABLE_MSG(...) ET_CHECK_MSG(false, __VA_ARGS__)
#define ET_CHECK_OR_RETURN_ERROR(condition, error, ...) TORCHETTE_CHECK(condition, error, __VA_ARGS__)
#define ET_CHECK_OR_LOG_ERROR(condition, ...)            \
  do {                                                   \
    if (!(condition)) TORCHETTE_LOG(Error, __VA_ARGS__); \
  } while (0)
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
/// Declares `variable`. A message after the expression is optional.
#define ET_ASSIGN_OR_RETURN(variable, expression, ...) \
  auto torchette_result_of_##variable = (expression);  \
  if (!torchette_result_of_##variable.ok()) {          \
    TORCHETTE_LOG(Error, " " __VA_ARGS__);             \
    return torchette_result_of_##variable.error();     \
  }                                                    \
  auto variable = std::move(*torchette_result_of_##variable)
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

#define ET_RUNTIME_NAMESPACE runtime
#define ET_DEPRECATED [[deprecated]]
#define ET_EXPERIMENTAL [[deprecated("experimental")]]
#define ET_FALLTHROUGH [[fallthrough]]
#define ET_FUNCTION __func__
#define ET_HAVE_GNU_STATEMENT_EXPRESSIONS TORCHETTE_GNU
#define ET_INLINE TORCHETTE_INLINE
// The parentheses allow `if ET_LIKELY (condition)`, which ExecuTorch's code uses.
#define ET_LIKELY(expression) (TORCHETTE_LIKELY(!!(expression)))
#define ET_LINE __LINE__
#define ET_LOG_ENABLED (TORCHETTE_LOG_LEVEL > 0)
#define ET_NODISCARD [[nodiscard]]
#define ET_NOINLINE TORCHETTE_NOINLINE
#define ET_NORETURN [[noreturn]]
#define ET_PRINTFLIKE(text, first) TORCHETTE_FORMAT(text, first)
#define ET_PRIsize_t "zu"
#define ET_PRIssize_t "zd"
#define ET_SHORT_FILENAME __FILE__
#define ET_UNLIKELY(expression) (TORCHETTE_UNLIKELY(!!(expression)))
#define ET_UNREACHABLE() TORCHETTE_TRAP()
#define ET_UNUSED [[maybe_unused]]
#define ET_WEAK TORCHETTE_WEAK
#if defined(_MSC_VER)
#define ET_RESTRICT __restrict
#else
#define ET_RESTRICT __restrict__
#endif

// --- The platform: a port that is written for ExecuTorch overrides Torchette's functions by defining these
// names.
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
using et_pal_current_ticks_t = et_timestamp_t (*)();
using pal_init_method = decltype(::torchette::PalImpl::init);
using pal_abort_method = decltype(::torchette::PalImpl::abort);
using pal_current_ticks_method = decltype(::torchette::PalImpl::current_ticks);
using pal_ticks_to_ns_multiplier_method = decltype(::torchette::PalImpl::ticks_to_ns_multiplier);
using pal_emit_log_message_method = decltype(::torchette::PalImpl::emit_log_message);
using pal_allocate_method = decltype(::torchette::PalImpl::allocate);
using pal_free_method = decltype(::torchette::PalImpl::free);
inline constexpr et_pal_log_level_t kDebug = TORCHETTE_LOG_DEBUG;
inline constexpr et_pal_log_level_t kInfo = TORCHETTE_LOG_INFO;
inline constexpr et_pal_log_level_t kError = TORCHETTE_LOG_ERROR;
inline constexpr et_pal_log_level_t kFatal = TORCHETTE_LOG_FATAL;
