// SPDX-License-Identifier: BSD-3-Clause
// Compile-only checks of the claims about C++ in docs/from-executorch-cpp.md: names that exist, and names
// that do not.
#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/data_loader/file_descriptor_data_loader.h>
#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/data_loader/shared_ptr_data_loader.h>
#include <executorch/extension/evalue_util/print_evalue.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/llm/runner/stats.h>
#include <executorch/extension/llm/runner/text_llm_runner.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/pytree/pytree.h>
#include <executorch/extension/runner_util/inputs.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/kernel_includes.h>

#include <ostream>
#include <tuple>
#include <type_traits>
#include <vector>

#include "torchette/llm/text/tokenizer.h"

namespace rt = executorch::runtime;
namespace ext = executorch::extension;

// ---- names that exist, under all namespaces ----

static_assert(std::is_same_v<rt::Program, torch::executor::Program>);
static_assert(std::is_same_v<rt::Program, torchette::Program>);
static_assert(std::is_same_v<executorch::aten::Tensor, exec_aten::Tensor>);
static_assert(std::is_same_v<ext::Module, torchette::extension::Module>);

using Loaders = std::tuple<ext::FileDataLoader, ext::MmapDataLoader, ext::BufferDataLoader,
                           ext::SharedPtrDataLoader, ext::FileDescriptorDataLoader>;

ext::TensorPtr filled = ext::make_tensor_ptr({2, 2}, {1.0f, 2.0f, 3.0f, 4.0f});
auto prepared(rt::Method& method) { return ext::prepare_input_tensors(method); }
std::ostream& printed(std::ostream& out, const rt::EValue& value) { return out << value; }
rt::EventTracer* tracer = nullptr;

ext::llm::GenerationConfig config;
ext::llm::Stats stats;
using Runner = ext::llm::TextLLMRunner;
using Tokenizers = std::tuple<torchette::extension::llm::HFTokenizer, torchette::extension::llm::Tiktoken,
                              torchette::extension::llm::SPTokenizer>;

// ---- names with another type than in ExecuTorch ----

static_assert(std::is_same_v<decltype(rt::CompileSpec::value), rt::Span<const uint8_t>>);
static_assert(std::is_same_v<decltype(&rt::register_backend), rt::Error (*)(rt::Backend&)>);
static_assert(
    std::is_same_v<decltype(ext::pytree::unflatten<int>({}, {})), rt::Result<ext::pytree::Tree<int>>>);
static_assert(
    std::is_same_v<decltype(std::declval<rt::EValue>().tryToTensor()), rt::Result<executorch::aten::Tensor>>);

// ---- members that exist, and members that do not ----

#define MEMBER(name, expression)         \
  template <typename T, typename = void> \
  struct name : std::false_type {};      \
  template <typename T>                  \
  struct name<T, std::void_t<decltype(expression)>> : std::true_type {}

MEMBER(HasMadvise, T::LoadMode::MmapUseMadvise);
MEMBER(HasNamedDataMap, &T::get_named_data_map);
MEMBER(HasTagMember, std::declval<T>().tag == rt::Tag::None);
MEMBER(HasMlock, T::LoadMode::MmapUseMlock);
MEMBER(HasLayout, &T::get_tensor_layout);
MEMBER(HasLoadInto, &T::load_data_into);
MEMBER(HasTensor, &T::get_tensor);
MEMBER(HasAllocationEvents, std::declval<T>().set_allocation_events(true));
static_assert(HasMlock<ext::Module>::value && HasMadvise<ext::Module>::value);
static_assert(!HasNamedDataMap<rt::Program>::value && !HasTagMember<rt::EValue>::value);
static_assert(!std::is_polymorphic_v<ext::Module>);
static_assert(HasTensor<rt::NamedDataMap>::value && !HasLayout<rt::NamedDataMap>::value);
static_assert(!HasLoadInto<rt::NamedDataMap>::value);
static_assert(HasLayout<ext::FlatTensorDataMap>::value && HasLoadInto<ext::FlatTensorDataMap>::value);
static_assert(HasAllocationEvents<executorch::etdump::ETDumpGen>::value);

// ---- names that do not exist: an existing name would be ambiguous with these declarations ----

namespace absent {
struct KernelKey {};
struct TensorMeta {};
struct Kernel {};
struct Layout {};
struct MemoryFormat {};
struct ContainerHandle {};
struct SizedBuffer {};
struct LoadBackendOptionsMap {};
struct FunctionRef {};
struct NoThreadPoolGuard {};
struct OpFunction {};
inline int register_kernels() { return 0; }
inline int extract_scalar_tensor() { return 0; }
inline int get_registered_kernels() { return 0; }
}  // namespace absent

namespace seen {
using namespace executorch::runtime;
using namespace executorch::aten;
using namespace torch::executor;
using namespace executorch::extension;
using namespace executorch::extension::pytree;
using namespace absent;
using All = std::tuple<KernelKey, TensorMeta, Kernel, Layout, MemoryFormat, ContainerHandle, SizedBuffer,
                       LoadBackendOptionsMap, FunctionRef, NoThreadPoolGuard, OpFunction>;
int registered = register_kernels() + extract_scalar_tensor() + get_registered_kernels();
}  // namespace seen

#if !defined(ET_SWITCH_FLOAT_TYPES) || defined(ET_SWITCH_COMPLEX_TYPES) || defined(ET_SWITCH_QINT_TYPES) || \
    defined(ET_SWITCH_ALL_TYPES)
#error "docs/from-executorch-cpp.md: the switches that are left out"
#endif
