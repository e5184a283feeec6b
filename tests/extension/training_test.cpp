// SPDX-License-Identifier: BSD-3-Clause
// Trains with ExecuTorch's names and headers. In: a program that contains its parameters, a program with
// parameters in a data file, that data file, a folder, and the name of an optimizer. Out: the loss of each
// step on a line. After the tenth step, a checkpoint is written to the folder.
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/flat_tensor/serialize/serialize.h>
#include <executorch/extension/training/module/training_module.h>
#include <executorch/extension/training/optimizer/sgd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

using executorch::extension::FileDataLoader;
using executorch::extension::FlatTensorDataMap;
using executorch::extension::make_tensor_ptr;
using executorch::extension::TensorPtr;
using executorch::extension::training::load_checkpoint;
using executorch::extension::training::save_checkpoint;
using executorch::extension::training::TrainingModule;
using executorch::extension::training::optimizer::Adam;
using executorch::extension::training::optimizer::AdamOptions;
using executorch::extension::training::optimizer::SGD;
using executorch::extension::training::optimizer::SGDOptions;
using executorch::runtime::Error;

#define CHECK(what)                                          \
  do {                                                       \
    if (!(what)) {                                           \
      std::printf("line %d: failed: %s\n", __LINE__, #what); \
      std::exit(1);                                          \
    }                                                        \
  } while (0)

namespace {

constexpr int kSteps = 10;

float step(TrainingModule& module, const TensorPtr& x, const TensorPtr& labels) {
  const auto outputs = module.execute_forward_backward("forward", {*x, *labels});
  CHECK(outputs.ok() && outputs->size() == 2);
  return outputs->at(0).toTensor().const_data_ptr<float>()[0];
}

template <typename Optimizer>
void train(TrainingModule& module, Optimizer& optimizer, const std::string& checkpoint) {
  const TensorPtr x = make_tensor_ptr({4, 2}, {0.f, 0.f, 0.f, 1.f, 1.f, 0.f, 1.f, 1.f});
  const TensorPtr labels = make_tensor_ptr<int64_t>({0, 1, 1, 0});
  float expected[kSteps];
  for (int i = 0; i < 2 * kSteps; ++i) {
    const float loss = step(module, x, labels);
    std::printf("%.9g\n", static_cast<double>(loss));
    if (i >= kSteps) expected[i - kSteps] = loss;
    CHECK(optimizer.step(*module.named_gradients("forward")) == Error::Ok);
    if (i + 1 == kSteps)
      CHECK(save_checkpoint(checkpoint, *module.named_parameters("forward"), optimizer.state()) == Error::Ok);
  }
  // Training that resumes from the checkpoint has the same losses.
  auto loader = FileDataLoader::from(checkpoint.c_str());
  CHECK(loader.ok());
  auto map = FlatTensorDataMap::load(&*loader);
  CHECK(map.ok());
  const auto parameters = *module.named_parameters("forward");
  CHECK(load_checkpoint(*map, parameters, &optimizer.state()) == Error::Ok);
  for (int i = 0; i < kSteps; ++i) {
    CHECK(step(module, x, labels) == expected[i]);
    CHECK(optimizer.step(*module.named_gradients("forward")) == Error::Ok);
  }
  // Invalid gradients and checkpoints are rejected and change nothing.
  auto others = parameters;
  const float before = parameters.begin()->second.template const_data_ptr<float>()[0];
  others.emplace("none", *x);
  CHECK(load_checkpoint(*map, others, nullptr) == Error::NotFound);
  CHECK(optimizer.step({{"none", *x}}) == Error::InvalidArgument);
  CHECK(optimizer.step({{parameters.begin()->first, *x}}) == Error::InvalidArgument);
  CHECK(parameters.begin()->second.template const_data_ptr<float>()[0] == before);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 6);
  const std::string inside = argv[1], outside = argv[2], data = argv[3], folder = argv[4], kind = argv[5];
  TrainingModule module(inside);
  CHECK(module.named_gradients("forward").error() == Error::InvalidState);
  CHECK(module.execute_forward_backward("none", {}).error() == Error::NotSupported);
  if (kind == "sgd") {
    SGD optimizer(*module.named_parameters("forward"), SGDOptions(0.3, 0.9, 0.1, 0.001));
    train(module, optimizer, folder + "/checkpoint.ptd");
  } else if (kind == "nesterov") {
    SGD optimizer(*module.named_parameters("forward"), SGDOptions(0.3, 0.9, 0, 0, true));
    train(module, optimizer, folder + "/checkpoint.ptd");
  } else {
    Adam optimizer(*module.named_parameters("forward"), AdamOptions(0.05));
    train(module, optimizer, folder + "/checkpoint.ptd");
  }
  // A program with external parameters starts from the checkpoint or from the exported parameters.
  for (const std::string& file : {data, folder + "/checkpoint.ptd"}) {
    auto pte = FileDataLoader::from(outside.c_str()), ptd = FileDataLoader::from(file.c_str());
    CHECK(pte.ok() && ptd.ok());
    TrainingModule other(std::make_unique<FileDataLoader>(std::move(*pte)), nullptr, nullptr, nullptr,
                         std::make_unique<FileDataLoader>(std::move(*ptd)));
    std::printf("%.9g\n", static_cast<double>(
                              step(other, make_tensor_ptr({4, 2}, {0.f, 0.f, 0.f, 1.f, 1.f, 0.f, 1.f, 1.f}),
                                   make_tensor_ptr<int64_t>({0, 1, 1, 0}))));
  }
  return 0;
}
