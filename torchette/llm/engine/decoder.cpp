// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/decoder.h"

#include <algorithm>
#include <string_view>

#include "torchette/llm/engine/media_decoders.h"
#include "torchette/llm/text/json.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

Result<std::vector<double>> metadata(Module& module, const char* name) {
  std::vector<double> found;
  const Result<std::unordered_set<std::string>> names = module.method_names();
  if (!names.ok()) return names.error();
  if (names->count(name) == 0) return found;
  const Result<MethodMeta> meta = module.method_meta(name);
  if (!meta.ok()) return meta.error();
  if (meta->num_inputs() != 0) return found;
  const Result<std::vector<Value>> values = module.execute(name);
  if (!values.ok()) return values.error();
  for (const Value& value : *values) {
    if (value.is_scalar()) found.push_back(value.to_scalar().to_double());
    if (value.tag() == Tag::ListInt)
      for (int64_t number : value.to_int_list()) found.push_back(static_cast<double>(number));
    if (value.tag() == Tag::ListDouble)
      for (double number : value.to_double_list()) found.push_back(number);
  }
  return found;
}

Error metadata_value(Module& module, const char* name, int64_t otherwise, int64_t* out) {
  const Result<std::vector<double>> found = metadata(module, name);
  if (!found.ok()) return found.error();
  *out = found->empty() ? otherwise : truncate((*found)[0]);
  return Error::Ok;
}

Result<Decoder::Adapter> Decoder::adapter_of(const Program& program) {
  Adapter adapter;
  const Result<FreeableBuffer> bytes = program.get_data("adapter.json");
  if (!bytes.ok()) return adapter;
  const Result<Json> json = Json::parse({static_cast<const char*>(bytes->data()), bytes->size()});
  if (!json.ok()) return json.error();
  for (size_t i = 0; i < json->items.size() && json->is(Json::Kind::Object); ++i) {
    size_t count = 1;
    for (const Json& size : json->items[i].items) {
      const int64_t n = size.index();
      TORCHETTE_CHECK(n > 0 && count <= SIZE_MAX / 16 / static_cast<size_t>(n), InvalidProgram,
                      "adapter.json of the file is damaged at %s", json->keys[i].c_str());
      count *= static_cast<size_t>(n);
    }
    adapter.emplace_back(json->keys[i], count);
  }
  return adapter;
}

Error Decoder::load(size_t num_inputs) {
  TORCHETTE_TRY(module_->load_method(method_));
  const Result<MethodMeta> meta = module_->method_meta(method_);
  if (!meta.ok()) return meta.error();
  num_inputs_ = meta->num_inputs();
  TORCHETTE_CHECK((num_inputs_ == num_inputs || num_inputs_ == num_inputs + 1) && meta->num_outputs() >= 1,
                  NotSupported, "%s has %zu inputs; it is not a step of a language model", method_,
                  num_inputs_);
  for (size_t i = 0; i < num_inputs_; ++i) {
    const Result<TensorInfo> info = meta->input_tensor_meta(i);
    TORCHETTE_CHECK(info.ok(), NotSupported, "input %zu of %s is not a tensor", i, method_);
    if (i == 0 && info->sizes().size() > 1) max_tokens_ = static_cast<size_t>(info->sizes()[1]);
    TORCHETTE_CHECK(i > 0 || max_tokens_ == 1 || info->shape_dynamism() != TensorShapeDynamism::STATIC,
                    NotSupported, "%s accepts exactly %zu tokens; compile it for 1 token or a dynamic count",
                    method_, max_tokens_);
  }
  max_tokens_ = std::max<size_t>(std::min(max_tokens_, max_context_), 1);
  const Result<TensorInfo> out = meta->output_tensor_meta(0);
  TORCHETTE_CHECK(out.ok() && !out->sizes().empty() && out->sizes()[out->sizes().size() - 1] > 0,
                  NotSupported, "%s returns no logits", method_);
  vocab_size_ = static_cast<size_t>(out->sizes()[out->sizes().size() - 1]);
  return Error::Ok;
}

Result<std::unique_ptr<Decoder>> Decoder::make(std::shared_ptr<Module> module, size_t max_context) {
  const Result<std::unordered_set<std::string>> names = module->method_names();
  if (!names.ok()) return names.error();
#ifndef __wasm__  // web pages cannot pass images or audio, and need a small program
  if (names->count("text_decoder") != 0) return make_media_decoder(std::move(module), *names, max_context);
#endif
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(module), "forward", max_context));
  TORCHETTE_TRY(decoder->load(2));
  const Result<MethodMeta> meta = decoder->module_->method_meta("forward");
  bool fits = meta.ok() && meta->num_inputs() == 2;
  for (size_t i = 0; i < 2 && fits; ++i) {
    const Result<TensorInfo> info = meta->input_tensor_meta(i);
    fits = info.ok() && info->scalar_type() == ScalarType::Long;
  }
  TORCHETTE_CHECK(fits, NotSupported,
                  "the inputs of forward must be tokens and a position, both int64 tensors");
  return decoder;
}

Result<Tensor> Decoder::execute(const char* method, const std::vector<TensorPtr>& inputs) {
  std::vector<Value> values;
  for (const TensorPtr& input : inputs) {
    TORCHETTE_CHECK(input != nullptr, MemoryAllocationFailed, "cannot allocate the inputs of %s", method);
    values.emplace_back(input);
  }
  const Result<Method*> loaded = module_->method_without_outputs(method);
  if (!loaded.ok()) return loaded.error();
  running_ = *loaded;
  const Result<std::vector<Value>> outputs = module_->execute(method, values);
  if (!outputs.ok()) return outputs.error();
  TORCHETTE_CHECK(!outputs->empty() && (*outputs)[0].is_tensor(), NotSupported, "%s returns no tensor",
                  method);
  const Tensor& given = (*outputs)[0].toTensor();
  TORCHETTE_CHECK(given.scalar_type() == ScalarType::Float && given.dim() >= 1 && given.numel() > 0,
                  NotSupported, "%s does not return a float32 tensor", method);
  return given;
}

Result<Decoder::Logits> Decoder::logits_of(const Result<Tensor>& tensor) const {
  if (!tensor.ok()) return tensor.error();
  const auto size = static_cast<size_t>(tensor->size(tensor->dim() - 1));
  return Logits{tensor->mutable_data_ptr<float>(), static_cast<size_t>(tensor->numel()) / size, size};
}

Result<Decoder::Logits> Decoder::step(const std::vector<uint64_t>& tokens, size_t begin, size_t end) {
  std::vector<int64_t> chunk(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                             tokens.begin() + static_cast<std::ptrdiff_t>(end));
  auto position = static_cast<int64_t>(begin);
  return logits_of(
      execute(method_, {from_blob(chunk.data(), {1, static_cast<SizesType>(chunk.size())}, ScalarType::Long),
                        from_blob(&position, {1}, ScalarType::Long)}));
}

size_t Decoder::max_step_end(const std::vector<uint64_t>& tokens, size_t begin) const {
  return std::min(begin + max_tokens_, tokens.size());
}

Result<Decoder::Prompt> Decoder::place(const std::vector<MultimodalInput>& inputs) {
  Prompt prompt;
  for (const MultimodalInput& input : inputs) {
    TORCHETTE_CHECK(input.is_tokens(), InvalidArgument, "this model accepts text, not images or audio");
    prompt.tokens.insert(prompt.tokens.end(), input.get_tokens().begin(), input.get_tokens().end());
  }
  return prompt;
}

Result<std::vector<Decoder::Part>> Decoder::state() {
  std::vector<Part> parts;
  const Result<Method*> method = module_->method_without_outputs(method_);
  if (!method.ok()) return method.error();
  const Result<Adapter> adapter = adapter_of(*module_->program());
  if (!adapter.ok()) return adapter.error();
  const MethodMeta meta = (*method)->method_meta();
  for (size_t i = 0; i < meta.num_attributes(); ++i) {
    const Result<TensorInfo> info = meta.attribute_tensor_meta(i);
    if (!info.ok()) return info.error();
    std::string name(info->name().data(), info->name().size());
    if (std::any_of(adapter->begin(), adapter->end(), [&](const auto& one) { return one.first == name; }))
      continue;
    const Result<Tensor> tensor = (*method)->get_attribute(name.c_str());
    if (!tensor.ok()) return tensor.error();
    parts.push_back({std::move(name),
                     tensor->scalar_type(),
                     {tensor->sizes().begin(), tensor->sizes().end()},
                     static_cast<uint8_t*>(tensor->mutable_data_ptr()),
                     tensor->nbytes()});
  }
  return parts;
}

Result<bool> Decoder::is_recurrent() {
  const Result<std::vector<Part>> parts = state();
  if (!parts.ok()) return parts.error();
  return std::any_of(parts->begin(), parts->end(), [](const Part& part) { return part.is_recurrent(); });
}

void Decoder::cancel() {
  if (Method* const method = running_) method->cancel();
}

void Decoder::undo_cancel() {
  if (Method* const method = running_) static_cast<void>(method->reset_execution());
}

Result<size_t> Decoder::memory() {
  const Result<std::unordered_set<std::string>> names = module_->method_names();
  if (!names.ok()) return names.error();
  size_t bytes = 0;
  for (const std::string& name : *names) {
    if (!module_->is_method_loaded(name)) continue;
    const Result<MethodMemory> memory = module_->method_memory(name);
    if (!memory.ok()) return memory.error();
    bytes += memory->method_bytes;
    for (const Span<uint8_t>& buffer : memory->planned) bytes += buffer.size();
  }
  return bytes;
}

Result<std::unique_ptr<Decoder>> Decoder::on(std::shared_ptr<Module> module) const {
  return make(std::move(module), max_context_);
}

}  // namespace torchette::extension::llm
