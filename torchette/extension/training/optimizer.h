// SPDX-License-Identifier: BSD-3-Clause
// SGD and Adam with the update rules of torch.optim. A step updates parameters in place from gradients of the
// same names; both are float32. The state between steps is a map of tensors with names such as
// "weight@momentum", which torchette/extension/training/checkpoint.h stores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/extension/tensor_ptr.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::training {

/// The state of an optimizer between steps, by name.
using OptimizerState = std::map<std::string, TensorPtr>;

namespace optimizer {

class SGDOptions {
 public:
  explicit SGDOptions(double lr, double momentum = 0, double dampening = 0, double weight_decay = 0,
                      bool nesterov = false)
      : lr_(lr),
        momentum_(momentum),
        dampening_(dampening),
        weight_decay_(weight_decay),
        nesterov_(nesterov) {}
  double lr() const { return lr_; }
  void lr(double value) { lr_ = value; }
  double momentum() const { return momentum_; }
  double dampening() const { return dampening_; }
  double weight_decay() const { return weight_decay_; }
  bool nesterov() const { return nesterov_; }

 private:
  double lr_, momentum_, dampening_, weight_decay_;
  bool nesterov_;
};

class AdamOptions {
 public:
  explicit AdamOptions(double lr = 1e-3, double beta1 = 0.9, double beta2 = 0.999, double eps = 1e-8,
                       double weight_decay = 0)
      : lr_(lr), beta1_(beta1), beta2_(beta2), eps_(eps), weight_decay_(weight_decay) {}
  double lr() const { return lr_; }
  void lr(double value) { lr_ = value; }
  double beta1() const { return beta1_; }
  double beta2() const { return beta2_; }
  double eps() const { return eps_; }
  double weight_decay() const { return weight_decay_; }

 private:
  double lr_, beta1_, beta2_, eps_, weight_decay_;
};

/// Parameters that share the options of an optimizer.
template <typename Options>
class ParamGroup {
 public:
  ParamGroup(std::map<std::string_view, Tensor> named_parameters, Options options)
      : named_parameters_(std::move(named_parameters)), options_(options) {}
  const std::map<std::string_view, Tensor>& named_parameters() const { return named_parameters_; }
  Options& options() { return options_; }
  const Options& options() const { return options_; }

 private:
  std::map<std::string_view, Tensor> named_parameters_;
  Options options_;
};
using SGDParamGroup = ParamGroup<SGDOptions>;

template <typename T>
bool are_equal(Span<T> a, Span<T> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// Base class of the optimizers. `Rule::change` updates one parameter.
template <typename Rule, typename Options>
class Optimizer {
 public:
  Optimizer(const std::map<std::string_view, Tensor>& named_parameters, Options options) {
    add_param_group({named_parameters, options});
  }
  void add_param_group(ParamGroup<Options> group) { groups_.push_back(std::move(group)); }
  std::vector<ParamGroup<Options>>& param_groups() { return groups_; }
  OptimizerState& state() { return state_; }

  /// Updates the parameters by one step. On an error, they are unchanged. Errors: InvalidArgument (a gradient
  /// has no parameter of its name, or another shape or layout), NotSupported (a dtype is not float32).
  Error step(const std::map<std::string_view, Tensor>& named_gradients) {
    std::vector<std::pair<const Options*, const Tensor*>> matched;
    for (const auto& [name, gradient] : named_gradients) {
      const Tensor* parameter = nullptr;
      for (const ParamGroup<Options>& group : groups_) {
        const auto at = group.named_parameters().find(name);
        if (at == group.named_parameters().end()) continue;
        parameter = &at->second;
        matched.emplace_back(&group.options(), parameter);
        break;
      }
      const int size = static_cast<int>(name.size());
      TORCHETTE_CHECK(parameter != nullptr, InvalidArgument, "gradient %.*s has no parameter of that name",
                      size, name.data());
      TORCHETTE_CHECK(are_equal(parameter->sizes(), gradient.sizes()) &&
                          are_equal(parameter->strides(), gradient.strides()),
                      InvalidArgument, "the gradient of %.*s differs from the parameter in shape or strides",
                      size, name.data());
      TORCHETTE_CHECK(
          parameter->scalar_type() == ScalarType::Float && gradient.scalar_type() == ScalarType::Float,
          NotSupported, "parameter %.*s or its gradient is not float32", size, name.data());
    }
    static_cast<Rule*>(this)->begin();
    auto next = matched.begin();
    for (const auto& [name, gradient] : named_gradients) {
      const auto [options, parameter] = *next++;
      static_cast<Rule*>(this)->change(std::string(name), *options, *parameter,
                                       gradient.template const_data_ptr<float>());
    }
    return Error::Ok;
  }

 protected:
  /// Returns the data of the state tensor `name`, which has the shape and strides of `like`. If it does not
  /// exist or does not match `like`, creates it with zeros and sets `*is_new`.
  float* state_tensor(const std::string& name, const Tensor& like, bool* is_new) {
    TensorPtr& tensor = state_[name];
    *is_new = !tensor || tensor->scalar_type() != ScalarType::Float ||
              !are_equal(tensor->sizes(), like.sizes()) || !are_equal(tensor->strides(), like.strides());
    if (*is_new) {
      tensor = clone_tensor_ptr(like);
      std::memset(tensor->mutable_data_ptr(), 0, tensor->nbytes());
    }
    return tensor->template mutable_data_ptr<float>();
  }

  std::vector<ParamGroup<Options>> groups_;
  OptimizerState state_;
};

class SGD : public Optimizer<SGD, SGDOptions> {
 public:
  SGD(const std::map<std::string_view, Tensor>& named_parameters, SGDOptions options)
      : Optimizer(named_parameters, options) {}

 private:
  friend class Optimizer<SGD, SGDOptions>;
  void begin() {}
  void change(const std::string& name, const SGDOptions& options, const Tensor& parameter,
              const float* gradient) {
    const auto lr = static_cast<float>(options.lr()), decay = static_cast<float>(options.weight_decay());
    const auto momentum = static_cast<float>(options.momentum());
    const auto one_minus_dampening = static_cast<float>(1 - options.dampening());
    auto* const value = parameter.mutable_data_ptr<float>();
    bool is_new = false;
    float* const buffer = momentum == 0 ? nullptr : state_tensor(name + "@momentum", parameter, &is_new);
    for (ptrdiff_t i = 0; i < parameter.numel(); ++i) {
      float update = gradient[i] + decay * value[i];
      if (buffer != nullptr) {
        buffer[i] = is_new ? update : momentum * buffer[i] + one_minus_dampening * update;
        update = options.nesterov() ? update + momentum * buffer[i] : buffer[i];
      }
      value[i] -= lr * update;
    }
  }
};

class Adam : public Optimizer<Adam, AdamOptions> {
 public:
  explicit Adam(const std::map<std::string_view, Tensor>& named_parameters,
                AdamOptions options = AdamOptions())
      : Optimizer(named_parameters, options) {}

 private:
  friend class Optimizer<Adam, AdamOptions>;
  void begin() {
    TensorPtr& count = state_["@step"];
    if (!count || count->scalar_type() != ScalarType::Long || count->numel() != 1)
      count = make_tensor_ptr(int64_t{0});
    step_ = static_cast<double>(++*count->mutable_data_ptr<int64_t>());
  }
  void change(const std::string& name, const AdamOptions& options, const Tensor& parameter,
              const float* gradient) {
    const auto beta1 = static_cast<float>(options.beta1()), beta2 = static_cast<float>(options.beta2());
    const auto decay = static_cast<float>(options.weight_decay()), eps = static_cast<float>(options.eps());
    const auto lr = static_cast<float>(options.lr() / (1 - std::pow(options.beta1(), step_)));
    const auto scale = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2(), step_)));
    auto* const value = parameter.mutable_data_ptr<float>();
    bool is_new;
    float* const mean = state_tensor(name + "@mean", parameter, &is_new);
    float* const square = state_tensor(name + "@square", parameter, &is_new);
    for (ptrdiff_t i = 0; i < parameter.numel(); ++i) {
      const float update = gradient[i] + decay * value[i];
      mean[i] = beta1 * mean[i] + (1 - beta1) * update;
      square[i] = beta2 * square[i] + (1 - beta2) * update * update;
      value[i] -= lr * mean[i] / (std::sqrt(square[i]) * scale + eps);
    }
  }
  double step_ = 0;
};

}  // namespace optimizer
}  // namespace torchette::extension::training
