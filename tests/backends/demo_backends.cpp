// SPDX-License-Identifier: BSD-3-Clause
// The device parts of ExecuTorch's two demo backends, each in a separate library. In: payloads of the Python
// parts. One backend runs a list of operators. The other runs a program, which may contain a delegate of the
// first.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/module.h"
#include "torchette/extension/tensor_ptr.h"
#include "torchette/runtime/backend.h"

namespace {

using namespace torchette;

/// The payload: "<count>version:0#", then "op:demo::<name>, numel:<n>, dtype:<type><debug_handle><handle>#"
/// for each operator. It does not contain operands: the first operand is the result of the previous operator,
/// a second operand is the next input.
class CompilerDemo final : public BackendInterface {
  struct Operator {
    std::string name;
    DelegateDebugIntId handle;
  };

 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    const std::string text(static_cast<const char*>(processed->data()), processed->size());
    processed->Free();
    const size_t header = text.find("version:0#");
    if (header == std::string::npos) {
      TORCHETTE_LOG(Error, "the payload does not belong to version 0 of the demo backend");
      return Error::DelegateInvalidCompatibility;
    }
    auto operators = std::make_unique<std::vector<Operator>>();
    for (size_t at = text.find('#'); at + 1 < text.size(); at = text.find('#', at + 1)) {
      constexpr char kBegin[] = "op:demo::";
      const size_t name = at + sizeof(kBegin), end = text.find(',', name);
      if (text.compare(at + 1, sizeof(kBegin) - 1, kBegin) != 0 || end == std::string::npos) break;
      const size_t handle = text.find('>', end);
      operators->push_back({text.substr(name, end - name), std::atoi(text.c_str() + handle + 1)});
    }
    if (std::to_string(operators->size()) != text.substr(0, header))
      return Error::DelegateInvalidCompatibility;
    return static_cast<DelegateHandle*>(operators.release());
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<Value*> arguments) const override {
    EventTracer* const tracer = context.event_tracer();
    size_t given = 0;
    const auto next = [&]() -> Tensor { return arguments[given++]->to_tensor(); };
    const Tensor first = next();
    std::vector<SizesType> shape(first.sizes().begin(), first.sizes().end());
    std::vector<float> value(first.const_data_ptr<float>(), first.const_data_ptr<float>() + first.numel());
    for (const auto& [name, id] : *static_cast<const std::vector<Operator>*>(handle)) {
      const EventTracerEntry event = event_tracer_start_profiling_delegate(tracer, nullptr, id);
      const auto told = [&, id = id] {
        event_tracer_end_profiling_delegate(tracer, event);
        const auto tensor = extension::from_blob(value.data(), shape);
        event_tracer_log_output_delegate(tracer, nullptr, id, *tensor);
      };
      if (name == "aten.sin.default") {
        for (float& x : value) x = std::sin(x);
        told();
        continue;
      }
      TORCHETTE_CHECK(given + 1 < arguments.size(), InvalidArgument, "%s has no second operand",
                      name.c_str());
      const Tensor other = next();
      const float* b = other.const_data_ptr<float>();
      if (name == "aten.add.Tensor") {
        for (size_t i = 0; i < value.size(); ++i) value[i] += b[i];
      } else if (name == "aten.mm.default") {
        const auto m = shape[0], k = shape[1], n = other.sizes()[1];
        std::vector<float> product(static_cast<size_t>(m * n));
        for (int i = 0; i < m * n; ++i)
          for (int j = 0; j < k; ++j) product[i] += value[i / n * k + j] * b[j * n + i % n];
        value = std::move(product);
        shape = {m, n};
      } else {
        TORCHETTE_LOG(Error, "the demo backend has no operator %s", name.c_str());
        return Error::NotSupported;
      }
      told();
    }
    const Tensor out = next();
    TORCHETTE_TRY(resize_tensor(out, {shape.data(), shape.size()}));
    memcpy(out.mutable_data_ptr(), value.data(), value.size() * sizeof(float));
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { delete static_cast<std::vector<Operator>*>(handle); }
};

CompilerDemo compiler_demo;
Backend compiler_entry{"BackendWithCompilerDemo", &compiler_demo};

#ifdef WHOLE_PROGRAM
/// Its payload is a program.
class ExecutorDemo final : public BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    // this library contains a separate copy of the runtime, with its own registry of backends
    if (get_backend_class(compiler_entry.name) == nullptr) TORCHETTE_TRY(register_backend(compiler_entry));
    auto module = std::make_unique<extension::Module>(
        std::make_shared<extension::BufferDataLoader>(processed->data(), processed->size()));
    TORCHETTE_TRY(module->load_forward());
    return static_cast<DelegateHandle*>(module.release());
  }

  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<Value*> arguments) const override {
    auto& module = *static_cast<extension::Module*>(handle);
    const Result<MethodMeta> meta = module.method_meta("forward");
    if (!meta.ok()) return meta.error();
    std::vector<Value> inputs;
    for (size_t i = 0; i < meta->num_inputs(); ++i) inputs.push_back(*arguments[i]);
    const auto results = module.forward(inputs);
    if (!results.ok()) return results.error();
    for (size_t i = 0; i < results->size(); ++i) {
      const Tensor from = (*results)[i].to_tensor(), to = arguments[inputs.size() + i]->to_tensor();
      TORCHETTE_TRY(resize_tensor(to, from.sizes()));
      memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    }
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { delete static_cast<extension::Module*>(handle); }
};

ExecutorDemo executor_demo;
Backend executor_entry{"ExecutorBackend", &executor_demo};
#endif

}  // namespace

extern "C" __attribute__((visibility("default"))) torchette::Backend* torchette_backend() {
#ifdef WHOLE_PROGRAM
  return &executor_entry;
#else
  return &compiler_entry;
#endif
}
