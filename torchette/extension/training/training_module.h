// SPDX-License-Identifier: BSD-3-Clause
// TrainingModule: runs a program with a method that returns a loss and gradients. Returns the loss, and the
// method's parameters and gradients by name for an optimizer. Header-only, so that only training programs
// contain it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/extension/module.h"

namespace torchette::extension::training {

/// Names are valid as long as the program, tensors as long as the method.
using NamedTensors = std::map<std::string_view, Tensor>;

class TrainingModule : public Module {
 public:
  /// `data_files` are .ptd files with parameters that are stored outside the program, such as checkpoints.
  explicit TrainingModule(std::string file_path, std::vector<std::string> data_files = {})
      : Module(std::move(file_path), std::move(data_files), LoadMode::File) {}
  explicit TrainingModule(std::shared_ptr<DataLoader> data_loader,
                          std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
                          std::shared_ptr<MemoryAllocator> temp_allocator = nullptr,
                          std::shared_ptr<EventTracer> event_tracer = nullptr,
                          std::shared_ptr<DataLoader> data_map_loader = nullptr)
      : Module(std::move(data_loader), std::move(memory_allocator), std::move(temp_allocator),
               std::move(event_tracer), std::move(data_map_loader)) {}

  /// Runs a method. Returns the loss and the model's other outputs. Errors: those of execute(), NotSupported
  /// (the method returns no gradients).
  Result<std::vector<Value>> execute_forward_backward(const std::string& method_name,
                                                      const std::vector<Value>& inputs) {
    const Result<OutputIndices*> indices = find_indices(method_name);
    if (!indices.ok()) return indices.error();
    Result<std::vector<Value>> outputs = execute(method_name, inputs);
    if (!outputs.ok()) return outputs.error();
    outputs->resize((*indices)->gradients);
    (*indices)->has_run = true;
    return outputs;
  }

  /// Returns the parameters, which share the method's memory: the method uses values that are written to
  /// them. Errors: those of load_method(), NotSupported.
  Result<NamedTensors> named_parameters(const std::string& method_name) {
    const Result<OutputIndices*> indices = find_indices(method_name);
    if (!indices.ok()) return indices.error();
    return tensors(method_name, **indices, (*indices)->parameters);
  }

  /// Returns the gradients of the last execution. Errors: InvalidState (the method has not run),
  /// NotSupported.
  Result<NamedTensors> named_gradients(const std::string& method_name) {
    const Result<OutputIndices*> indices = find_indices(method_name);
    if (!indices.ok()) return indices.error();
    TORCHETTE_CHECK((*indices)->has_run, InvalidState, "method %s has no gradients yet: it has not run",
                    method_name.c_str());
    return tensors(method_name, **indices, (*indices)->gradients);
  }

 private:
  /// The indices of the first gradient and of the first parameter among a method's outputs.
  struct OutputIndices {
    size_t gradients, parameters;
    std::vector<std::string_view> names;
    bool has_run = false;
  };

  Result<size_t> get_index(const char* prefix, const std::string& method_name) {
    const Result<Value> value = get(std::string("__et_training_") + prefix + method_name);
    if (!value.ok()) return value.error();
    TORCHETTE_CHECK(value->is_int() && value->to_int() >= 0, InvalidProgram,
                    "__et_training_%s%s must return an index", prefix, method_name.c_str());
    return static_cast<size_t>(value->to_int());
  }

  Result<OutputIndices*> find_indices(const std::string& method_name) {
    if (const auto cached = indices_.find(method_name); cached != indices_.end()) return &cached->second;
    const std::string names_method = "__et_training_fqn_" + method_name;
    const Result<std::unordered_set<std::string>> methods = method_names();
    if (!methods.ok()) return methods.error();
    TORCHETTE_CHECK(methods->count(names_method) != 0, NotSupported, "method %s returns no gradients",
                    method_name.c_str());
    const Result<size_t> gradients = get_index("gradients_index_", method_name);
    const Result<size_t> parameters = get_index("parameters_index_", method_name);
    const Result<std::vector<Value>> names = execute(names_method);
    if (!gradients.ok()) return gradients.error();
    if (!parameters.ok()) return parameters.error();
    if (!names.ok()) return names.error();
    const Result<MethodMeta> meta = method_meta(method_name);
    if (!meta.ok()) return meta.error();
    OutputIndices indices{*gradients, *parameters, {}};
    const size_t count = names->size(), outputs = meta->num_outputs();
    bool is_valid = count <= outputs && *parameters <= outputs - count && *gradients <= *parameters &&
                    count <= *parameters - *gradients;
    for (size_t i = 0; is_valid && i < count; ++i) {
      is_valid = names->at(i).isString() && *meta->output_tag(*gradients + i) == Tag::Tensor &&
                 *meta->output_tag(*parameters + i) == Tag::Tensor;
      if (is_valid)
        indices.names.emplace_back(names->at(i).to_string().data(), names->at(i).to_string().size());
    }
    TORCHETTE_CHECK(is_valid, InvalidProgram,
                    "the outputs of method %s do not contain the gradients that it names",
                    method_name.c_str());
    return &indices_.emplace(method_name, std::move(indices)).first->second;
  }

  Result<NamedTensors> tensors(const std::string& method_name, const OutputIndices& indices, size_t first) {
    NamedTensors named;
    for (size_t i = 0; i < indices.names.size(); ++i) {
      const Result<Value> output = get_output(method_name, first + i);
      if (!output.ok()) return output.error();
      named.emplace(indices.names[i], output->to_tensor());
    }
    return named;
  }

  std::unordered_map<std::string, OutputIndices> indices_;
};

}  // namespace torchette::extension::training
