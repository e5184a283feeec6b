// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/text_llm_runner.h"

#include <algorithm>
#include <cstring>

#include "torchette/extension/file_data_loader.h"
#include "torchette/llm/engine/adapter_data.h"
#include "torchette/llm/engine/options.h"
#include "torchette/llm/engine/session_state.h"
#include "torchette/llm/engine/text_llm_answer.h"
#include "torchette/llm/text/json.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
Result<FreeableBuffer> TextLLMRunner::named_data(const char* name) const {
  if (named_data_) {
    const auto found = named_data_->find(name);
    if (found == named_data_->end()) return Error::NotFound;
    return FreeableBuffer(found->second.data(), found->second.size(), nullptr);
  }
  const std::shared_ptr<Program> program = module_->program();
  return program ? program->get_data(name) : Result<FreeableBuffer>(Error::NotFound);
}

Error TextLLMRunner::read_metadata() {
  int64_t uses_cache = 1, begin = -1, end = -1, longest = 128;
  TORCHETTE_TRY(metadata_value(*module_, "use_kv_cache", 1, &uses_cache));
  TORCHETTE_TRY(metadata_value(*module_, "get_max_seq_len", 128, &longest));
  TORCHETTE_TRY(metadata_value(*module_, "get_max_context_len", longest, &max_context_));
  TORCHETTE_TRY(metadata_value(*module_, "get_bos_id", -1, &begin));
  TORCHETTE_TRY(metadata_value(*module_, "get_eos_id", -1, &end));
  const Result<std::vector<double>> listed = metadata(*module_, "get_eos_ids");
  if (!listed.ok()) return listed.error();
  std::vector<int64_t> ends;
  for (double one : *listed) ends.push_back(truncate(one));
  if (ends.empty() && end >= 0) ends.push_back(end);
  if (begin >= 0) begin_ = static_cast<uint64_t>(begin);
  for (int64_t id : ends)
    if (id >= 0) ends_.insert(static_cast<uint64_t>(id));
  if (!ends.empty() && ends[0] >= 0) end_ = static_cast<uint64_t>(ends[0]);
  TORCHETTE_CHECK(uses_cache != 0, NotSupported, "the model was exported without a KV cache (use_kv_cache)");
  TORCHETTE_CHECK(longest > 0 && max_context_ > 0 && max_context_ <= INT32_MAX, InvalidProgram,
                  "get_max_seq_len is %lld and get_max_context_len %lld", static_cast<long long>(longest),
                  static_cast<long long>(max_context_));
  return Error::Ok;
}

/// The hash of the program's file. The first state computes it.
struct TextLLMRunner::Identity {
  std::atomic<uint64_t> hash{0};
  std::atomic<bool> is_known{false};
};

TextLLMRunner::TextLLMRunner(std::shared_ptr<Module> module, std::shared_ptr<Tokenizer> tokenizer,
                             float temperature)
    : root_(std::move(module)),
      module_(root_),
      tokenizer_(std::move(tokenizer)),
      identity_(std::make_shared<Identity>()),
      temperature_(temperature) {}

TextLLMRunner::TextLLMRunner(std::unique_ptr<Decoder> decoder, std::shared_ptr<Tokenizer> tokenizer,
                             NamedData named_data, uint64_t begin, const std::vector<uint64_t>& ends)
    : named_data_(std::make_shared<const NamedData>(std::move(named_data))),
      tokenizer_(std::move(tokenizer)),
      decoder_(std::move(decoder)),
      identity_(std::make_shared<Identity>()),
      temperature_(-1),
      loaded_(true),
      begin_(begin),
      end_(ends.empty() ? UINT64_MAX : ends[0]),
      max_context_(static_cast<int64_t>(decoder_->max_context())),
      ends_(ends.begin(), ends.end()) {
  identity_->is_known = true;
  static_cast<void>(recurrent_.reset(*decoder_));  // such a decoder does not fail
}

/// Creates the decoder. For a model with adapters, its module contains the tensors of the adapter.
Error TextLLMRunner::make_decoder(std::shared_ptr<DataLoader> adapter) {
  Result<Decoder::Adapter> tensors = Decoder::adapter_of(*root_->program());
  if (!tensors.ok()) return tensors.error();
  std::shared_ptr<Module> module = root_;
  std::string hash;
  if (!tensors->empty()) {
    Result<std::shared_ptr<const NamedDataMap>> data =
        AdapterData::make(root_, std::move(adapter), std::move(*tensors), &hash);
    if (!data.ok()) return data.error();
    module = std::make_shared<Module>(root_, std::move(*data));
  }
  Result<std::unique_ptr<Decoder>> decoder = Decoder::make(module, static_cast<size_t>(max_context_));
  if (!decoder.ok()) return decoder.error();
  TORCHETTE_TRY(recurrent_.reset(**decoder));
  module_ = std::move(module);
  decoder_ = std::move(*decoder);
  adapter_ = std::move(hash);
  return Error::Ok;
}

Error TextLLMRunner::load_model() {
  if (max_context_ > 0 && decoder_) return Error::Ok;
  TORCHETTE_CHECK(module_ != nullptr, InvalidArgument, "the runner has no module");
  TORCHETTE_TRY(module_->load());
  TORCHETTE_TRY(read_metadata());
  return decoder_ ? Error::Ok : make_decoder(nullptr);
}

Error TextLLMRunner::load() {
  if (loaded_) return Error::Ok;
  TORCHETTE_CHECK(module_ != nullptr, InvalidArgument, "the runner has no module");
  load_start_ = time_in_ms();
  TORCHETTE_TRY(module_->load());
  const Result<FreeableBuffer> bytes =
      tokenizer_ ? Result<FreeableBuffer>(Error::NotFound) : named_data("tokenizer.json");
  if (bytes.ok()) {
    Result<std::unique_ptr<Tokenizer>> made =
        make_tokenizer({static_cast<const char*>(bytes->data()), bytes->size()});
    if (!made.ok()) return made.error();
    tokenizer_ = std::move(*made);
  }
  TORCHETTE_CHECK(!tokenizer_ || tokenizer_->is_loaded(), InvalidState, "the tokenizer is not loaded");
  TORCHETTE_TRY(load_model());
  if (tokenizer_ && begin_ != UINT64_MAX) tokenizer_->set_bos_tok(begin_);
  if (tokenizer_ && end_ != UINT64_MAX) tokenizer_->set_eos_tok(end_);
  load_end_ = time_in_ms();
  loaded_ = true;
  return Error::Ok;
}

Result<Json> TextLLMRunner::generation_json() const {
  const Result<FreeableBuffer> bytes = named_data("generation_config.json");
  if (!bytes.ok()) return Json();
  return Json::parse({static_cast<const char*>(bytes->data()), bytes->size()});
}

Error TextLLMRunner::read_constraints() {
  if (constraints_) return Error::Ok;
  const Result<Json> json = generation_json();
  if (!json.ok()) return json.error();
  Result<TokenConstraints> constraints = TokenConstraints::from(*json);
  if (!constraints.ok()) return constraints.error();
  constraints->end_tokens.assign(ends_.begin(), ends_.end());
  constraints_ = std::make_shared<const TokenConstraints>(std::move(*constraints));
  return Error::Ok;
}

Result<GenerationConfig> TextLLMRunner::default_config() {
  TORCHETTE_TRY(load());
  GenerationConfig config;
  config.temperature = 0;
  const Result<Json> json = generation_json();
  if (!json.ok()) return json.error();
  const Json& stops = (*json)["stop_strings"];
  if (stops.is_string()) config.stop.push_back(stops.text);
  for (const Json& text : stops.items)
    if (text.is_string()) config.stop.push_back(text.text);
  config.max_new_tokens = static_cast<int32_t>((*json)["max_new_tokens"].index());
  if (config.max_new_tokens < 0) config.seq_len = static_cast<int32_t>((*json)["max_length"].index());
  GenerationConfig sampled = config;
  sampled.temperature = 1;
  sampled.top_k = 50;  // transformers samples from 50 tokens if the file does not say
  read_sampling(*json, &sampled);
  if (json->flag("do_sample")) return sampled;
  config.repetition_penalty = sampled.repetition_penalty;  // transformers applies it to greedy answers
  return config;
}

Result<std::vector<uint64_t>> TextLLMRunner::encode(const std::string& prompt,
                                                    const GenerationConfig& config) const {
  TORCHETTE_CHECK(tokenizer_ != nullptr, NotFound,
                  "the file has no tokenizer.json; pass a tokenizer to the runner, or a prompt of tokens");
  if (config.add_special_tokens) return tokenizer_->encode_with_special_tokens(prompt);
  return tokenizer_->encode(prompt, static_cast<int8_t>(config.num_bos), static_cast<int8_t>(config.num_eos));
}

Error TextLLMRunner::run_prompt(Span<float>* logits) {
  if (recurrent_.exists()) {
    TORCHETTE_TRY(run(tokens_.size() - 1, logits));
    if (stopped_.load(std::memory_order_relaxed)) return Error::Ok;
    TORCHETTE_TRY(recurrent_.snapshot(*decoder_, RecurrentState::Kind::Prompt));
  }
  return run(tokens_.size(), logits);
}

Error TextLLMRunner::run(size_t size, Span<float>* logits) {
  num_run_ = recurrent_.discard_after(num_run_);
  while (num_run_ < size) {
    const size_t end = std::min(decoder_->max_step_end(tokens_, num_run_), size);
    const Result<Decoder::Logits> given = step(tokens_, num_run_, end);
    if (!given.ok() && stopped_) return Error::Ok;
    if (!given.ok()) return given.error();
    num_run_ = end;
    *logits = {given->last(), given->size};
    if (stopped_.load(std::memory_order_relaxed)) return Error::Ok;
  }
  return Error::Ok;
}

Result<Decoder::Logits> TextLLMRunner::step(const std::vector<uint64_t>& tokens, size_t begin, size_t end) {
  TORCHETTE_TRY(recurrent_.restore(*decoder_, begin));
  step_ = Step::Running;
  Result<Decoder::Logits> logits = decoder_->step(tokens, begin, end);
  recurrent_.set_position(logits.ok() ? end : RecurrentState::kUnknown);
  Step expected = Step::Running;
  if (step_.compare_exchange_strong(expected, Step::None)) return logits;
  while (step_ == Step::Cancelling) {  // stop() calls the decoder on another thread
  }
  step_ = Step::None;
  if (logits.ok()) decoder_->undo_cancel();
  return logits;
}

void TextLLMRunner::stop() {
  stopped_.store(true, std::memory_order_relaxed);
  Step expected = Step::Running;
  if (!step_.compare_exchange_strong(expected, Step::Cancelling)) return;
  decoder_->cancel();
  step_ = Step::Cancelled;
}

Result<size_t> TextLLMRunner::memory() {
  TORCHETTE_TRY(load());
  return decoder_->memory();
}

std::string TextLLMRunner::bytes_of(uint64_t token) const {
  return tokenizer_ ? tokenizer_->bytes_of(token) : std::string();
}

Result<std::vector<uint64_t>> TextLLMRunner::place_prompt(const std::vector<MultimodalInput>& inputs) {
  TORCHETTE_TRY(load());
  GenerationConfig config;
  config.add_special_tokens = true;
  Result<Decoder::Prompt> prompt = place(inputs, config);
  if (!prompt.ok()) return prompt.error();
  return std::move(prompt->tokens);
}

Error TextLLMRunner::run_all(const std::vector<uint64_t>& tokens, Span<float>* logits) {
  const size_t least = std::min(tokens.size(), tokens_.size());
  const auto differ =
      std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(least), tokens_.begin());
  const auto common = static_cast<size_t>(differ.first - tokens.begin());
  answer_.reset();
  tokens_ = tokens;
  num_run_ = std::min({num_run_, common, tokens.size() - 1});
  recurrent_.discard_after(num_run_);
  stopped_.store(false, std::memory_order_relaxed);
  return run(tokens_.size(), logits);
}

Result<Decoder::Prompt> TextLLMRunner::place(const std::vector<MultimodalInput>& inputs,
                                             const GenerationConfig& config) {
  std::vector<MultimodalInput> placed;
  GenerationConfig given = config;
  for (const MultimodalInput& input : inputs)
    if (input.is_audio() || input.is_raw_audio()) given.add_special_tokens = false;
  const auto last =
      std::find_if(inputs.rbegin(), inputs.rend(), [](const auto& one) { return one.is_text(); });
  for (const MultimodalInput& input : inputs) {
    if (!input.is_text()) {
      for (uint64_t token : input.is_tokens() ? input.get_tokens() : std::vector<uint64_t>())
        TORCHETTE_CHECK(token < decoder_->vocab_size(), InvalidArgument,
                        "token %llu is out of range: the model has %zu tokens",
                        static_cast<unsigned long long>(token), decoder_->vocab_size());
      placed.push_back(input);
      continue;
    }
    given.num_eos = &input == &*last ? config.num_eos : 0;
    Result<std::vector<uint64_t>> tokens = encode(input.get_text(), given);
    if (!tokens.ok()) return tokens.error();
    placed.emplace_back(std::move(*tokens));
    given.add_special_tokens = false;  // only the first text has the tokens of a beginning
    given.num_bos = 0;
  }
  return decoder_->place(placed);
}

Error TextLLMRunner::prefill(const std::string& prompt, int32_t num_bos, int32_t num_eos) {
  return prefill({MultimodalInput(prompt)}, num_bos, num_eos);
}

Error TextLLMRunner::prefill(const std::vector<MultimodalInput>& inputs, int32_t num_bos, int32_t num_eos) {
  TORCHETTE_TRY(load());
  GenerationConfig config;
  config.num_bos = num_bos;
  config.num_eos = num_eos;
  TORCHETTE_TRY(check(config));
  const Result<Decoder::Prompt> prompt = place(inputs, config);
  if (!prompt.ok()) return prompt.error();
  const size_t before = prompt->begins_conversation ? 0 : tokens_.size();
  TORCHETTE_CHECK(before + prompt->tokens.size() <= static_cast<size_t>(max_context_), OutOfResources,
                  "a prompt of %zu tokens after %zu tokens exceeds the context of %lld",
                  prompt->tokens.size(), before, static_cast<long long>(max_context_));
  TORCHETTE_TRY(rewind(before));
  tokens_.insert(tokens_.end(), prompt->tokens.begin(), prompt->tokens.end());
  stopped_.store(false, std::memory_order_relaxed);
  Span<float> logits;
  const Error error = tokens_.empty() ? Error::Ok : run_prompt(&logits);
  if (error != Error::Ok) static_cast<void>(rewind(before));  // a prompt that failed is not kept
  return error;
}

Error TextLLMRunner::rewind(size_t position) {
  TORCHETTE_CHECK(position <= tokens_.size(), InvalidArgument,
                  "position %zu exceeds the %zu tokens of the conversation", position, tokens_.size());
  tokens_.resize(position);
  num_run_ = std::min(num_run_, position);
  recurrent_.discard_after(num_run_);
  answer_.reset();  // an unfinished answer cannot continue
  return Error::Ok;
}

Error TextLLMRunner::warmup(const std::string& prompt, int32_t max_new_tokens) {
  GenerationConfig config;
  config.warming = true;
  config.echo = false;
  config.ignore_eos = true;
  config.max_new_tokens = max_new_tokens;
  const size_t before = tokens_.size();
  TORCHETTE_TRY(generate(prompt, config));
  return rewind(before);
}

TextLLMRunner::~TextLLMRunner() = default;

Stats TextLLMRunner::stats() const {
  Stats stats = answer_ ? answer_->stats : Stats();
  if (!answer_ || answer_->has_ended) return stats;
  stats.inference_end_ms = time_in_ms();  // so far
  if (stats.prompt_eval_end_ms == 0) stats.prompt_eval_end_ms = stats.inference_end_ms;
  return stats;
}

Result<std::string> TextLLMRunner::render(std::string_view messages, std::string_view options) {
  std::string grammar;
  return render(messages, options, &grammar);
}

Result<std::string> TextLLMRunner::render(std::string_view messages, std::string_view options,
                                          std::string* grammar) {
  TORCHETTE_TRY(load());
  const Result<Json> given = Json::parse(messages, Json::kMaxSchemaDepth);
  if (!given.ok()) return given.error();
  const Result<Json> more = Json::parse(options.empty() ? "{}" : options, Json::kMaxSchemaDepth);
  if (!more.ok()) return more.error();
  TORCHETTE_CHECK(more->is(Json::Kind::Object), InvalidArgument,
                  "the options of a chat must be a JSON object");
  if (!template_) {
    const auto file = [this](const char* name) -> std::optional<std::string> {
      const Result<FreeableBuffer> bytes = named_data(name);
      if (!bytes.ok()) return std::nullopt;
      return std::string(static_cast<const char*>(bytes->data()), bytes->size());
    };
    Result<ChatFormat> made = ChatFormat::of_program(file, tokenizer_.get(), begin_, end_);
    if (!made.ok()) return made.error();
    template_ = std::make_shared<ChatFormat>(std::move(*made));
  }
  const uint64_t placeholder = decoder_->image_placeholder();
  std::string image;  // the text of an image in templates without parts
  if (placeholder != UINT64_MAX && tokenizer_) {
    const Result<std::string> piece = tokenizer_->id_to_piece(placeholder);
    if (piece.ok()) image = *piece;
  }
  Result<std::string> calls = template_->grammar(*more);
  if (!calls.ok()) return calls.error();
  *grammar = std::move(*calls);
  return template_->prompt(*given, *more, image);
}

bool TextLLMRunner::has_template() const { return named_data("chat_template.jinja").ok(); }

Result<std::unique_ptr<TextLLMRunner>> TextLLMRunner::fork(bool with_state) {
  TORCHETTE_TRY(load());
  std::shared_ptr<Module> module = module_ ? std::make_shared<Module>(module_) : nullptr;
  auto other = std::make_unique<TextLLMRunner>(std::move(module), nullptr, temperature_);
  other->root_ = root_;
  other->tokenizer_ = tokenizer_;
  other->template_ = template_;
  other->constraints_ = constraints_;
  other->vocabulary_ = vocabulary_;
  other->identity_ = identity_;
  other->adapter_ = adapter_;
  Result<std::unique_ptr<Decoder>> decoder = decoder_->on(other->module_);
  if (!decoder.ok()) return decoder.error();
  other->decoder_ = std::move(*decoder);
  if (module_) {
    TORCHETTE_TRY(other->load());
  } else {
    other->loaded_ = true;
    other->named_data_ = named_data_;
    other->begin_ = begin_;
    other->end_ = end_;
    other->ends_ = ends_;
    other->max_context_ = max_context_;
  }
  other->recurrent_ = recurrent_;
  if (!with_state) {
    other->recurrent_.clear(0);
    return other;
  }
  const Result<std::vector<Decoder::Part>> from = decoder_->state(), to = other->decoder_->state();
  if (!from.ok()) return from.error();
  if (!to.ok()) return to.error();
  copy_state(*from, *to, num_run_, static_cast<size_t>(max_context_));
  TORCHETTE_TRY(other->decoder_->restored());
  other->tokens_ = tokens_;
  // the state of a program without names is computed again
  other->num_run_ = from->empty() ? 0 : num_run_;
  return other;
}

Result<std::string> TextLLMRunner::identity() {
  if (!identity_->is_known) {  // threads may compute the same value twice
    TORCHETTE_CHECK(root_->data_loader() != nullptr, NotSupported,
                    "the model was loaded from a Program; a state needs the bytes of its file");
    const Result<uint64_t> hash = hash_of(*root_->data_loader());
    if (!hash.ok()) return hash.error();
    identity_->hash = *hash;
    identity_->is_known = true;
  }
  return std::to_string(decoder_->vocab_size()) + "-" + std::to_string(max_context_) + "-" +
         std::to_string(identity_->hash) + adapter_;
}

Result<std::vector<uint8_t>> TextLLMRunner::state() {
  TORCHETTE_TRY(load());
  const Result<std::string> model = identity();
  if (!model.ok()) return model.error();
  const size_t context = static_cast<size_t>(max_context_);
  Span<float> logits;
  stopped_.store(false, std::memory_order_relaxed);
  const size_t size = std::min(tokens_.size(), context), num_saved = num_in_state(size);
  if (num_saved < size) num_run_ = std::min(num_run_, num_saved);
  TORCHETTE_TRY(run(num_saved, &logits));
  if (num_run_ == num_saved) num_run_ = size;
  const Result<std::vector<Decoder::Part>> parts = decoder_->state();
  if (!parts.ok()) return parts.error();
  std::vector<uint64_t> tokens = tokens_;
  tokens.resize(std::min(tokens.size(), context));
  return write_state(*model, tokens, *parts, context);
}

/// The number of tokens that have run in a saved state. The last token runs again for its logits, which
/// requires a recurrent state before it.
size_t TextLLMRunner::num_in_state(size_t num_tokens) const {
  return recurrent_.exists() && num_tokens > 0 ? num_tokens - 1 : num_tokens;
}

Error TextLLMRunner::set_state(Span<const uint8_t> bytes) {
  TORCHETTE_TRY(load());
  const Result<std::string> model = identity();
  if (!model.ok()) return model.error();
  const Result<std::vector<Decoder::Part>> parts = decoder_->state();
  if (!parts.ok()) return parts.error();
  const auto context = static_cast<size_t>(max_context_);
  Result<std::vector<uint64_t>> tokens =
      read_state(bytes, *model, *parts, context, decoder_->vocab_size(), decoder_->has_media());
  if (!tokens.ok()) return tokens.error();
  TORCHETTE_TRY(decoder_->restored());
  answer_.reset();
  tokens_ = std::move(*tokens);
  num_run_ = parts->empty() ? 0 : tokens_.size();
  recurrent_.clear(num_in_state(num_run_));
  return Error::Ok;
}

Error TextLLMRunner::save_state(const std::string& path) {
  const Result<std::vector<uint8_t>> bytes = state();
  return bytes.ok() ? write_file(path, *bytes) : bytes.error();
}

Error TextLLMRunner::load_state(const std::string& path) {
  const Result<std::vector<uint8_t>> bytes = read_file(path);
  return bytes.ok() ? set_state({bytes->data(), bytes->size()}) : bytes.error();
}

Error TextLLMRunner::set_adapter(const std::string& path) {
  TORCHETTE_TRY(load());
  std::shared_ptr<DataLoader> file;
  if (!path.empty()) {
    const Result<Decoder::Adapter> tensors = Decoder::adapter_of(*root_->program());
    TORCHETTE_CHECK(tensors.ok() && !tensors->empty(), InvalidArgument,
                    "the model was exported without adapters (lora=)");
    Result<FileDataLoader> opened = FileDataLoader::from(path.c_str());
    if (!opened.ok()) return opened.error();
    file = std::make_shared<FileDataLoader>(std::move(*opened));
  }
  TORCHETTE_TRY(make_decoder(std::move(file)));
  answer_.reset();
  tokens_.clear();
  num_run_ = 0;
  return Error::Ok;
}

std::unique_ptr<TextLLMRunner> create_text_llm_runner(const std::string& model_path,
                                                      std::unique_ptr<Tokenizer> tokenizer,
                                                      std::optional<const std::string> data_path,
                                                      float temperature) {
  std::vector<std::string> data;
  if (data_path) data.push_back(*data_path);
  auto module = std::make_unique<Module>(model_path, std::move(data), Module::LoadMode::Mmap);
  return std::make_unique<TextLLMRunner>(std::move(module), std::move(tokenizer), temperature);
}

}  // namespace torchette::extension::llm
