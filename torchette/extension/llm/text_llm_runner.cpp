// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/llm/text_llm_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "torchette/extension/file_data_loader.h"
#include "torchette/extension/llm/json.h"
#include "torchette/extension/llm/schema.h"
#include "torchette/extension/llm/session_state.h"
#include "torchette/extension/llm/unicode.h"
#include "torchette/extension/receipt.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

/// Holds back what may be the beginning of a text that ends the answer.
class StopStrings {
 public:
  explicit StopStrings(const std::vector<std::string>& stops) : stops_(stops) {}

  /// What of the text so far may be given out with this piece. Sets `*found` where a stop text is complete.
  std::string push(const std::string& piece, bool* found) {
    held_ += piece;
    size_t first = std::string::npos;
    for (const std::string& stop : stops_)
      if (!stop.empty()) first = std::min(first, held_.find(stop));
    *found = first != std::string::npos;
    size_t keep = 0;
    for (const std::string& stop : stops_)
      for (size_t n = std::min(stop.size(), held_.size()); n > keep && !*found; --n)
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    const size_t given = *found ? first : held_.size() - keep;
    std::string out = held_.substr(0, given);
    held_.erase(0, given);
    return out;
  }
  std::string rest() { return std::move(held_); }

 private:
  const std::vector<std::string>& stops_;
  std::string held_;
};

Error check(const GenerationConfig& config) {
  TORCHETTE_CHECK(config.temperature >= 0 && std::isfinite(config.temperature), InvalidArgument,
                  "temperature %g; it is 0 or more", static_cast<double>(config.temperature));
  TORCHETTE_CHECK(config.top_p > 0 && config.top_p <= 1, InvalidArgument,
                  "top_p %g; it is above 0, at most 1", static_cast<double>(config.top_p));
  TORCHETTE_CHECK(config.min_p >= 0 && config.min_p <= 1, InvalidArgument, "min_p %g; it is 0 to 1",
                  static_cast<double>(config.min_p));
  TORCHETTE_CHECK(config.top_k >= 0, InvalidArgument, "top_k %d; it is 0 or more",
                  static_cast<int>(config.top_k));
  TORCHETTE_CHECK(config.repetition_penalty > 0 && std::isfinite(config.repetition_penalty), InvalidArgument,
                  "repetition_penalty %g; it is above 0", static_cast<double>(config.repetition_penalty));
  TORCHETTE_CHECK(std::isfinite(config.presence_penalty) && std::isfinite(config.frequency_penalty),
                  InvalidArgument, "presence_penalty %g, frequency_penalty %g; they are numbers",
                  static_cast<double>(config.presence_penalty),
                  static_cast<double>(config.frequency_penalty));
  for (const auto& [token, bias] : config.logit_bias)
    TORCHETTE_CHECK(bias < INFINITY, InvalidArgument, "the logit_bias of token %llu is %g",
                    static_cast<unsigned long long>(token), static_cast<double>(bias));
  TORCHETTE_CHECK(
      config.num_bos >= 0 && config.num_bos <= 127 && config.num_eos >= 0 && config.num_eos <= 127,
      InvalidArgument, "%d tokens bos and %d eos; they are 0 to 127", static_cast<int>(config.num_bos),
      static_cast<int>(config.num_eos));
  return Error::Ok;
}

/// Of the chosen token and the likeliest ones, as they were before penalties and the temperature.
void add_logprobs(const std::vector<float>& logits, uint64_t token, size_t count, AnswerPiece* piece) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  const auto logprob = [&](size_t i) {
    return static_cast<float>(static_cast<double>(logits[i]) - most - std::log(sum));
  };
  piece->logprob = logprob(token);
  std::vector<uint32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  count = std::min(count, order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
      [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (size_t i = 0; i < count; ++i) piece->top.push_back({order[i], logprob(order[i])});
}

}  // namespace

Result<FreeableBuffer> TextLLMRunner::named_data(const char* name) const {
  const std::shared_ptr<Program> program = module_->program();
  return program ? program->get_data(name) : Result<FreeableBuffer>(Error::NotFound);
}

Error TextLLMRunner::read_metadata() {
  const auto number = [&](const char* name, int64_t otherwise, int64_t* out) -> Error {
    const Result<std::vector<double>> found = facts(*module_, name);
    if (!found.ok()) return found.error();
    *out = found->empty() ? otherwise : truncate((*found)[0]);
    return Error::Ok;
  };
  int64_t uses_cache = 1, begin = -1, end = -1, longest = 128;
  TORCHETTE_TRY(number("use_kv_cache", 1, &uses_cache));
  TORCHETTE_TRY(number("get_max_seq_len", 128, &longest));
  TORCHETTE_TRY(number("get_max_context_len", longest, &max_context_));
  TORCHETTE_TRY(number("get_bos_id", -1, &begin));
  TORCHETTE_TRY(number("get_eos_id", -1, &end));
  const Result<std::vector<double>> listed = facts(*module_, "get_eos_ids");
  if (!listed.ok()) return listed.error();
  std::vector<int64_t> ends;
  for (double one : *listed) ends.push_back(truncate(one));
  if (ends.empty() && end >= 0) ends.push_back(end);
  if (begin >= 0) begin_ = static_cast<uint64_t>(begin);
  for (int64_t id : ends)
    if (id >= 0) ends_.insert(static_cast<uint64_t>(id));
  if (!ends.empty() && ends[0] >= 0) end_ = static_cast<uint64_t>(ends[0]);
  TORCHETTE_CHECK(uses_cache != 0, NotSupported, "the model was exported without its caches (use_kv_cache)");
  TORCHETTE_CHECK(longest > 0 && max_context_ > 0 && max_context_ <= INT32_MAX, InvalidProgram,
                  "the model takes %lld tokens of %lld", static_cast<long long>(longest),
                  static_cast<long long>(max_context_));
  return Error::Ok;
}

/// The hash of the program's file, read where a state asks first.
struct TextLLMRunner::Identity {
  std::atomic<uint64_t> hash{0};
  std::atomic<bool> is_known{false};
};

namespace {

Result<uint64_t> hash_of(const DataLoader& file) {
  const Result<size_t> size = file.size();
  if (!size.ok()) return size.error();
  const Result<FreeableBuffer> bytes =
      file.load(0, *size, {DataLoader::SegmentInfo::Type::Program, 0, nullptr});
  if (!bytes.ok()) return bytes.error();
  return xxh64(bytes->data(), bytes->size());
}

/// An adapter's tensors, or zeros in their place; everything else is as in the data files of the program.
class AdapterData final : public NamedDataMap {
 public:
  static Result<std::shared_ptr<const NamedDataMap>> make(std::shared_ptr<Module> parent,
                                                          std::shared_ptr<DataLoader> file,
                                                          Decoder::Adapter tensors, std::string* hash) {
    auto made = std::make_shared<AdapterData>();
    size_t most = 0;
    for (const auto& one : tensors) most = std::max(most, one.second);
    if (file == nullptr) {
      made->zeros_.resize(most);
    } else {
      const Result<uint64_t> found = hash_of(*file);
      if (!found.ok()) return found.error();
      *hash = "-" + std::to_string(*found);
      Result<FlatTensorDataMap> map = FlatTensorDataMap::load(file.get());
      if (!map.ok()) return map.error();
      made->map_ = std::make_unique<FlatTensorDataMap>(std::move(*map));
      made->file_ = std::move(file);
    }
    made->tensors_ = std::move(tensors);
    made->parent_ = std::move(parent);
    return std::shared_ptr<const NamedDataMap>(std::move(made));
  }
  Result<FreeableBuffer> get_data(const char* key) const override {
    return next() == nullptr ? Result<FreeableBuffer>(Error::NotFound) : next()->get_data(key);
  }
  Result<uint32_t> get_num_keys() const override {
    return next() == nullptr ? Result<uint32_t>(0u) : next()->get_num_keys();
  }
  Result<const char*> get_key(uint32_t index) const override {
    return next() == nullptr ? Result<const char*>(Error::InvalidArgument) : next()->get_key(index);
  }
  Error get_tensor(const char* key, const TensorImpl& tensor, void** data) const override {
    for (const auto& [name, size] : tensors_) {
      if (name != key) continue;
      if (map_) return map_->get_tensor(key, tensor, data);
      size_t count = 1;
      for (size_t i = 0; i < tensor.dim; ++i) count *= static_cast<size_t>(tensor.sizes[i]);
      if (tensor.type != ScalarType::Float || count > zeros_.size()) return Error::InvalidExternalData;
      *data = const_cast<float*>(zeros_.data());
      return Error::Ok;
    }
    return next() == nullptr ? Error::NotFound : next()->get_tensor(key, tensor, data);
  }

 private:
  const NamedDataMap* next() const { return parent_->data_map(); }

  std::shared_ptr<Module> parent_;
  Decoder::Adapter tensors_;
  std::vector<float> zeros_;
  std::shared_ptr<DataLoader> file_;
  std::unique_ptr<FlatTensorDataMap> map_;
};

}  // namespace

TextLLMRunner::TextLLMRunner(std::unique_ptr<Module> module, std::unique_ptr<Tokenizer> tokenizer,
                             float temperature)
    : root_(std::move(module)),
      module_(root_),
      tokenizer_(std::move(tokenizer)),
      identity_(std::make_shared<Identity>()),
      temperature_(temperature) {}

/// With the module that has the adapter, where the model takes one.
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
  module_ = std::move(module);
  decoder_ = std::move(*decoder);
  adapter_ = std::move(hash);
  return Error::Ok;
}

Error TextLLMRunner::load_model() {
  if (max_context_ > 0 && decoder_) return Error::Ok;
  TORCHETTE_CHECK(module_ != nullptr, InvalidArgument, "there is no module");
  TORCHETTE_TRY(module_->load());
  TORCHETTE_TRY(read_metadata());
  return decoder_ ? Error::Ok : make_decoder(nullptr);
}

Error TextLLMRunner::load() {
  if (loaded_) return Error::Ok;
  TORCHETTE_CHECK(module_ != nullptr, InvalidArgument, "there is no module");
  load_start_ = time_in_ms();
  TORCHETTE_TRY(module_->load());
  if (!tokenizer_) {
    const Result<FreeableBuffer> bytes = named_data("tokenizer.json");
    TORCHETTE_CHECK(bytes.ok(), NotFound, "the file has no tokenizer.json; give the runner a tokenizer");
    Result<std::unique_ptr<Tokenizer>> made =
        make_tokenizer({static_cast<const char*>(bytes->data()), bytes->size()});
    if (!made.ok()) return made.error();
    tokenizer_ = std::move(*made);
  }
  TORCHETTE_CHECK(tokenizer_->is_loaded(), InvalidState, "the tokenizer is not loaded");
  TORCHETTE_TRY(load_model());
  if (begin_ != UINT64_MAX) tokenizer_->set_bos_tok(begin_);
  if (end_ != UINT64_MAX) tokenizer_->set_eos_tok(end_);
  load_end_ = time_in_ms();
  loaded_ = true;
  return Error::Ok;
}

Result<GenerationConfig> TextLLMRunner::default_config() {
  TORCHETTE_TRY(load());
  GenerationConfig config;
  config.temperature = 0;
  const Result<FreeableBuffer> bytes = named_data("generation_config.json");
  if (!bytes.ok()) return config;
  const Result<Json> json = Json::parse({static_cast<const char*>(bytes->data()), bytes->size()});
  if (!json.ok()) return json.error();
  const auto number = [&](const char* name, float otherwise) {
    const Json& member = (*json)[name];
    return member.is(Json::Kind::Number) ? static_cast<float>(member.number) : otherwise;
  };
  config.repetition_penalty = number("repetition_penalty", 1);
  if (!json->flag("do_sample")) return config;
  config.temperature = number("temperature", 1);
  config.top_k = static_cast<int32_t>(std::max<int64_t>((*json)["top_k"].index(), 0));
  config.top_p = number("top_p", 1);
  config.min_p = number("min_p", 0);
  return config;
}

Result<std::vector<uint64_t>> TextLLMRunner::encode(const std::string& prompt,
                                                    const GenerationConfig& config) const {
  if (config.add_special_tokens) return tokenizer_->encode_with_special_tokens(prompt);
  return tokenizer_->encode(prompt, static_cast<int8_t>(config.num_bos), static_cast<int8_t>(config.num_eos));
}

Error TextLLMRunner::run(size_t size, Span<float>* logits) {
  while (num_run_ < size) {
    const size_t end = std::min(decoder_->until(tokens_, num_run_), size);
    const Result<Decoder::Logits> given = decoder_->step(tokens_, num_run_, end);
    if (!given.ok()) return given.error();
    num_run_ = end;
    *logits = {given->last(), given->size};
    if (stopped_.load(std::memory_order_relaxed)) return Error::Ok;
  }
  return Error::Ok;
}

Error TextLLMRunner::run_all(const std::vector<uint64_t>& tokens, Span<float>* logits) {
  const size_t least = std::min(tokens.size(), tokens_.size());
  const auto differ =
      std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(least), tokens_.begin());
  const auto common = static_cast<size_t>(differ.first - tokens.begin());
  answer_.reset();
  tokens_ = tokens;
  num_run_ = std::min({num_run_, common, tokens.size() - 1});
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
                        "there is no token %llu, they are 0 to %zu", static_cast<unsigned long long>(token),
                        decoder_->vocab_size() - 1);
      placed.push_back(input);
      continue;
    }
    given.num_eos = &input == &*last ? config.num_eos : 0;
    Result<std::vector<uint64_t>> tokens = encode(input.get_text(), given);
    if (!tokens.ok()) return tokens.error();
    placed.emplace_back(std::move(*tokens));
    given.add_special_tokens = false;  // those that begin a text do so once
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
  const size_t before = prompt->is_whole ? 0 : tokens_.size();
  TORCHETTE_CHECK(before + prompt->tokens.size() <= static_cast<size_t>(max_context_), OutOfResources,
                  "a prompt of %zu tokens behind %zu; the context has room for %lld", prompt->tokens.size(),
                  before, static_cast<long long>(max_context_));
  TORCHETTE_TRY(rewind(before));
  tokens_.insert(tokens_.end(), prompt->tokens.begin(), prompt->tokens.end());
  stopped_.store(false, std::memory_order_relaxed);
  Span<float> logits;
  const Error error = run(tokens_.size(), &logits);
  if (error != Error::Ok) static_cast<void>(rewind(before));  // what failed was not said
  return error;
}

Error TextLLMRunner::rewind(size_t position) {
  TORCHETTE_CHECK(position <= tokens_.size(), InvalidArgument, "position %zu of %zu", position,
                  tokens_.size());
  tokens_.resize(position);
  num_run_ = std::min(num_run_, position);
  answer_.reset();  // an answer that was not finished does not go on
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

struct TextLLMRunner::Answer {
  Answer(const GenerationConfig& given, const Tokenizer& tokenizer)
      : config(given), sampler(config), stream(tokenizer), stops(config.stop) {}

  const GenerationConfig config;
  Sampler sampler;
  DecodeStream stream;
  StopStrings stops;
  Stats stats;
  std::vector<uint64_t> history;  // the conversation, what was forgotten, too
  size_t num_before = 0;          // of it, before the answer
  size_t num_said = 0;            // of the context, before the prompt
  int32_t most = 0;               // tokens
  size_t keep = 0;
  std::shared_ptr<Grammar> grammar;
  const Grammar::State* state = nullptr;
  double sampling_ms = 0;
  bool has_ended = false;
  // what a draft model has proposed, and of each what it was drawn from
  std::vector<uint64_t> guesses;
  std::vector<Sampler::Choice> chances;
  std::vector<float> rows;  // logits before each guess, and behind the last one
  size_t at = 0;            // of the rows, the next one
};

TextLLMRunner::~TextLLMRunner() = default;

Stats TextLLMRunner::stats() const { return answer_ ? answer_->stats : Stats(); }

void TextLLMRunner::forget(size_t keep, size_t newest) {
  const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(keep);
  const size_t tail = tokens_.size() - newest - keep;
  tokens_.erase(first, first + static_cast<std::ptrdiff_t>((tail + 1) / 2));
  num_run_ = std::min(num_run_, keep);
}

Result<std::unique_ptr<TextLLMRunner::Answer>> TextLLMRunner::prepare(const GenerationConfig& given) {
  TORCHETTE_TRY(load());
  GenerationConfig config = given;
  if (temperature_ != -1) config.temperature = temperature_;
  TORCHETTE_TRY(check(config));
  if (!config.schema.empty()) {
    TORCHETTE_CHECK(config.grammar.empty(), InvalidArgument,
                    "grammar and schema are two ways to say one thing: give one");
#ifdef __wasm__  // a page is to be small
    TORCHETTE_LOG(Error, "this build makes no grammar of a schema: torchette.llm.grammar_of does");
    return Error::NotSupported;
#else
    Result<std::string> grammar = grammar_of(config.schema);
    if (!grammar.ok()) return grammar.error();
    config.grammar = std::move(*grammar);
#endif
  }
  if (draft_) {
    TORCHETTE_TRY(draft_->load_model());  // it needs no tokenizer
    TORCHETTE_CHECK(
        draft_.get() != this && draft_->decoder_->vocab_size() == decoder_->vocab_size() && num_draft_ > 0,
        InvalidArgument, "a draft is a runner of its own, of a model with the same tokens");
  }
  auto answer = std::make_unique<Answer>(config, *tokenizer_);
  answer->stats.model_load_start_ms = load_start_;
  answer->stats.model_load_end_ms = load_end_;
  answer->stats.inference_start_ms = time_in_ms();
  if (config.grammar.empty()) return answer;
  if (!vocabulary_) {
    std::vector<std::string> tokens(tokenizer_->vocab_size());
    for (size_t i = 0; i < tokens.size(); ++i)
      if (ends_.count(i) == 0) tokens[i] = tokenizer_->bytes_of(i);
    vocabulary_ = std::make_shared<GrammarVocabulary>(std::move(tokens));
  }
  if (!grammar_ || grammar_text_ != config.grammar) {
    Result<std::unique_ptr<Grammar>> grammar = Grammar::parse(config.grammar);
    if (!grammar.ok()) return grammar.error();
    grammar_ = std::move(*grammar);
    grammar_text_ = config.grammar;
  }
  answer_.reset();  // the grammar moves for one answer at a time
  const Result<const Grammar::State*> state = grammar_->start();
  if (!state.ok()) return state.error();
  answer->grammar = grammar_;
  answer->state = *state;
  return answer;
}

Error TextLLMRunner::begin(const std::string& prompt, const GenerationConfig& config) {
  return begin({MultimodalInput(prompt)}, config);
}

Error TextLLMRunner::begin(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config) {
  Result<std::unique_ptr<Answer>> answer = prepare(config);
  if (!answer.ok()) return answer.error();
  const Result<Decoder::Prompt> prompt = place(inputs, config);
  if (!prompt.ok()) return prompt.error();
  if (!prompt->is_whole) return start(prompt->tokens, std::move(*answer));
  return start_whole(prompt->tokens, std::move(*answer));
}

Error TextLLMRunner::begin_with(const std::vector<uint64_t>& conversation, const GenerationConfig& config) {
  Result<std::unique_ptr<Answer>> answer = prepare(config);
  if (!answer.ok()) return answer.error();
  for (uint64_t token : conversation)  // as tokens() says them
    if (token >= decoder_->vocab_size() && decoder_->has_media())
      return start_whole(conversation, std::move(*answer));
  const Result<Decoder::Prompt> prompt = place({MultimodalInput(conversation)}, config);
  if (!prompt.ok()) return prompt.error();
  return start_whole(prompt->tokens, std::move(*answer));
}

Error TextLLMRunner::start_whole(const std::vector<uint64_t>& conversation, std::unique_ptr<Answer> answer) {
  TORCHETTE_CHECK(conversation.size() <= static_cast<size_t>(max_context_), OutOfResources,
                  "a conversation of %zu tokens; the context has room for %lld", conversation.size(),
                  static_cast<long long>(max_context_));
  size_t common = 0;
  while (common < std::min(conversation.size(), tokens_.size()) && conversation[common] == tokens_[common])
    ++common;
  TORCHETTE_TRY(rewind(common));
  const auto rest = conversation.begin() + static_cast<std::ptrdiff_t>(common);
  return start({rest, conversation.end()}, std::move(answer));
}

Result<std::string> TextLLMRunner::render(std::string_view messages) {
  TORCHETTE_TRY(load());
  if (!template_) {
    const Result<FreeableBuffer> bytes = named_data("chat_template.jinja");
    TORCHETTE_CHECK(bytes.ok(), NotFound, "the file has no chat template");
    Result<ChatTemplate> made = ChatTemplate::parse({static_cast<const char*>(bytes->data()), bytes->size()});
    if (!made.ok()) return made.error();
    template_ = std::make_shared<ChatTemplate>(std::move(*made));
  }
  Result<Json> given = Json::parse(messages);
  if (!given.ok()) return given.error();
  TORCHETTE_CHECK(given->is(Json::Kind::Array) && !given->items.empty(), InvalidArgument,
                  "messages are a list, each with a role and a content");
  for (const Json& message : given->items)
    TORCHETTE_CHECK(message["role"].is_string() && message["content"].is_string(), InvalidArgument,
                    "a message needs a role and a content, both text");
  Json yes, begin, end;
  yes.kind = Json::Kind::True;
  begin.kind = end.kind = Json::Kind::String;
  const auto name = [&](uint64_t token, Json* out) {
    Result<std::string> piece = tokenizer_->id_to_piece(token);
    if (piece.ok()) out->text = std::move(*piece);
  };
  if (begin_ != UINT64_MAX) name(begin_, &begin);
  if (!ends_.empty()) name(end_, &end);
  return template_->render({{"messages", std::move(*given)},
                            {"add_generation_prompt", yes},
                            {"bos_token", begin},
                            {"eos_token", end}});
}

bool TextLLMRunner::has_template() const { return named_data("chat_template.jinja").ok(); }

Error TextLLMRunner::begin_chat(std::string_view messages, const GenerationConfig& config) {
  const Result<std::string> prompt = render(messages);
  if (!prompt.ok()) return prompt.error();
  const Result<std::vector<uint64_t>> tokens = tokenizer_->encode(*prompt);
  return tokens.ok() ? begin_with(*tokens, config) : tokens.error();
}

Error TextLLMRunner::start(const std::vector<uint64_t>& prompt, std::unique_ptr<Answer> answer) {
  const GenerationConfig& config = answer->config;
  answer->stats.token_encode_end_ms = time_in_ms();
  answer->stats.num_prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto context = static_cast<size_t>(max_context_);
  TORCHETTE_CHECK(tokens_.size() + prompt.size() > 0, InvalidArgument,
                  "the prompt has no token to go on from");
  const uint64_t first = tokens_.empty() ? prompt.front() : tokens_[0];
  answer->keep = config.keep >= 0                                     ? static_cast<size_t>(config.keep)
                 : first == begin_ || first >= decoder_->vocab_size() ? 1
                                                                      : 0;
  TORCHETTE_CHECK(!config.slide || answer->keep + 1 < context, InvalidArgument,
                  "keep is %zu, and the context %zu: nothing could go", answer->keep, context);
  if (config.slide && prompt.size() + std::min(answer->keep, tokens_.size()) <= context)
    while (tokens_.size() > answer->keep && tokens_.size() + prompt.size() > context) forget(answer->keep, 0);
  TORCHETTE_CHECK(tokens_.size() + prompt.size() <= context, OutOfResources,
                  "a prompt of %zu tokens behind %zu; the context has room for %zu", prompt.size(),
                  tokens_.size(), context);
  answer->num_said = tokens_.size();
  tokens_.insert(tokens_.end(), prompt.begin(), prompt.end());
  // where nothing new was said, the last token is run again for its logits
  num_run_ = std::min(num_run_, tokens_.size() - 1);
  answer->history = tokens_;
  answer->num_before = tokens_.size();
  answer->most = config.resolve_max_new_tokens(
      static_cast<int32_t>(std::min<int64_t>(max_context_, INT32_MAX)), static_cast<int32_t>(tokens_.size()));
  if (config.slide && config.seq_len < 0)
    answer->most = config.max_new_tokens < 0 ? INT32_MAX : config.max_new_tokens;
  stopped_.store(false, std::memory_order_relaxed);
  answer_ = std::move(answer);
  return Error::Ok;
}

void TextLLMRunner::end(const char* reason, AnswerPiece* last) {
  Answer& answer = *answer_;
  Stats& stats = answer.stats;
  stats.finish_reason = reason;
  answer.has_ended = last->is_last = true;
  stats.aggregate_sampling_time_ms = static_cast<long>(answer.sampling_ms);
  stats.inference_end_ms = time_in_ms();
  if (stats.prompt_eval_end_ms == 0) stats.prompt_eval_end_ms = stats.inference_end_ms;
}

Result<std::vector<bool>> TextLLMRunner::allowed(Grammar& grammar, const Grammar::State* state, size_t size) {
  const Result<const std::vector<bool>*> mask = grammar.mask(state, *vocabulary_);
  if (!mask.ok()) return mask.error();
  std::vector<bool> may = **mask;
  for (uint64_t end : ends_) {
    if (end >= may.size()) may.resize(std::min<size_t>(end + 1, size));
    if (end < may.size()) may[end] = Grammar::accepts(state);
  }
  return may;
}

Error TextLLMRunner::guess() {
  Answer& answer = *answer_;
  answer.at = 0;
  std::vector<uint64_t> tokens = tokens_;
  for (uint64_t token : tokens)
    if (token >= decoder_->vocab_size()) return Error::Ok;  // which the draft has not seen
  const auto context = static_cast<int64_t>(std::min(max_context_, draft_->max_context_));
  const bool is_bounded = answer.config.max_new_tokens >= 0 || answer.config.seq_len >= 0;
  const int64_t room = std::min({context - static_cast<int64_t>(tokens.size()), int64_t{num_draft_},
                                 answer.most - answer.stats.num_generated_tokens - is_bounded});
  const Grammar::State* state = answer.state;
  std::vector<uint64_t> history = answer.history;
  while (static_cast<int64_t>(answer.guesses.size()) < room) {
    Span<float> logits;
    TORCHETTE_TRY(draft_->run_all(tokens, &logits));
    std::vector<bool> may;
    if (answer.grammar) {
      Result<std::vector<bool>> found = allowed(*answer.grammar, state, logits.size());
      if (!found.ok()) return found.error();
      may = std::move(*found);
    }
    Result<Sampler::Choice> choice =
        answer.sampler.choose(logits, history, answer.num_before, answer.grammar ? &may : nullptr);
    if (!choice.ok()) return choice.error();
    const uint64_t token = answer.sampler.draw(*choice);
    answer.guesses.push_back(token);
    answer.chances.resize(answer.guesses.size());
    answer.chances.back() = std::move(*choice);
    ++answer.stats.num_drafted_tokens;
    tokens.push_back(token);
    history.push_back(token);
    if (ends_.count(token) != 0) break;
    if (!answer.grammar) continue;
    const Result<const Grammar::State*> following =
        answer.grammar->advance(state, vocabulary_->tokens()[token], true);
    if (!following.ok()) return following.error();
    state = *following;
    if (state == nullptr || Grammar::is_done(state)) break;
  }
  if (answer.guesses.empty()) return Error::Ok;
  Span<float> last;
  TORCHETTE_TRY(run(tokens_.size() - 1, &last));  // where the context has slid
  answer.rows.clear();
  bool is_single = false;
  for (size_t at = num_run_; at < tokens.size();) {
    const size_t end = is_single ? at + 1 : std::min(decoder_->until(tokens, at), tokens.size());
    const Result<Decoder::Logits> given = decoder_->step(tokens, at, end);
    if (!given.ok()) return given.error();
    if (given->rows < end - at) {  // it gives the last ones alone
      is_single = true;
      continue;
    }
    answer.rows.insert(answer.rows.end(), given->data, given->data + given->rows * given->size);
    at = end;
  }
  num_run_ = tokens_.size();
  return Error::Ok;
}

Result<AnswerPiece> TextLLMRunner::next() {
  TORCHETTE_CHECK(answer_ != nullptr && !answer_->has_ended, InvalidState,
                  "no answer goes on; begin() begins one");
  Answer& answer = *answer_;
  const GenerationConfig& config = answer.config;
  Stats& stats = answer.stats;
  // what was held back, where the answer ends without a stop text
  const auto end_with_rest = [&](const char* reason) -> Result<AnswerPiece> {
    const Result<std::string> rest = answer.stream.flush();
    if (!rest.ok()) return rest.error();
    bool found = false;
    AnswerPiece last;
    last.text = answer.stops.push(*rest, &found);
    if (!found) last.text += answer.stops.rest();
    end(found ? "stop" : reason, &last);
    return last;
  };
  if (stats.num_generated_tokens >= answer.most)
    return end_with_rest(config.max_new_tokens >= 0 && answer.most == config.max_new_tokens ? "length"
                                                                                            : "context");
  if (tokens_.size() > static_cast<size_t>(max_context_)) forget(answer.keep, 1);
  if (answer.guesses.empty()) num_run_ = std::min(num_run_, tokens_.size() - 1);  // state() runs all
  Span<float> logits;
  Error error = Error::Ok;
  if (answer.guesses.empty() && draft_ && stats.num_generated_tokens > 0) error = guess();
  const bool judges = !answer.guesses.empty();
  if (judges)
    logits = {answer.rows.data() + answer.at * decoder_->vocab_size(), decoder_->vocab_size()};
  else if (error == Error::Ok)
    error = run(tokens_.size(), &logits);
  if (error != Error::Ok) {
    // a prompt that failed was not said
    static_cast<void>(rewind(stats.num_generated_tokens == 0 ? answer.num_said : tokens_.size()));
    return error;
  }
  if (stats.prompt_eval_end_ms == 0) stats.prompt_eval_end_ms = time_in_ms();
  if (stopped_.load(std::memory_order_relaxed)) return end_with_rest("cancelled");
  const torchette_timestamp_t sampling = current_ticks();
  AnswerPiece piece;
  std::vector<float> own;
  if (config.logprobs >= 0) own.assign(logits.begin(), logits.end());
  std::vector<bool> may;
  if (answer.grammar) {
    Result<std::vector<bool>> found = allowed(*answer.grammar, answer.state, logits.size());
    if (!found.ok()) return found.error();
    may = std::move(*found);
  }
  const Result<Sampler::Choice> choice =
      answer.sampler.choose(logits, answer.history, answer.num_before, answer.grammar ? &may : nullptr);
  if (!choice.ok()) return choice.error();
  uint64_t token = 0;
  bool is_guess = false;
  if (judges && answer.at < answer.guesses.size()) {
    is_guess = answer.sampler.accepts(*choice, answer.chances[answer.at], answer.guesses[answer.at], &token);
    if (is_guess) token = answer.guesses[answer.at];
  } else {
    token = answer.sampler.draw(*choice);
  }
  ++answer.at;
  if (!is_guess) answer.guesses.clear();
  if (config.logprobs >= 0) add_logprobs(own, token, static_cast<size_t>(config.logprobs), &piece);
  const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
  answer.sampling_ms += static_cast<double>(current_ticks() - sampling) *
                        static_cast<double>(ratio.numerator) / static_cast<double>(ratio.denominator) / 1e6;
  if (stats.num_generated_tokens == 0) stats.first_token_ms = time_in_ms();
  tokens_.push_back(token);
  if (is_guess) num_run_ = tokens_.size(), ++stats.num_accepted_tokens;
  answer.history.push_back(token);
  ++stats.num_generated_tokens;
  piece.token = token;
  if (!config.ignore_eos && ends_.count(token) != 0) {
    Result<AnswerPiece> last = end_with_rest("stop");
    if (last.ok()) last->token = token, last->logprob = piece.logprob, last->top = std::move(piece.top);
    return last;
  }
  // a model may have more tokens than its tokenizer
  const Result<std::string> text = tokenizer_->has(token) ? answer.stream.push(token) : std::string();
  if (!text.ok()) return text.error();
  bool found = false;
  piece.text = answer.stops.push(*text, &found);
  if (found) {
    end("stop", &piece);
  } else if (answer.grammar && ends_.count(token) == 0) {
    const Result<const Grammar::State*> state =
        answer.grammar->advance(answer.state, vocabulary_->tokens()[token]);
    if (!state.ok()) return state.error();
    TORCHETTE_CHECK(*state != nullptr, Internal, "the grammar does not allow what it allowed");
    answer.state = *state;
    if (!Grammar::is_done(*state)) return piece;
    const Result<AnswerPiece> last = end_with_rest("stop");
    if (!last.ok()) return last.error();
    piece.text += last->text;
    piece.is_last = true;
  }
  return piece;
}

Error TextLLMRunner::generate(const std::string& prompt, const GenerationConfig& config,
                              TokenCallback token_callback, StatsCallback stats_callback) {
  TORCHETTE_TRY(begin(prompt, config));
  if (config.echo && token_callback && !config.warming && !prompt.empty()) token_callback(prompt);
  return give(config, token_callback, stats_callback);
}

Error TextLLMRunner::generate(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config,
                              TokenCallback token_callback, StatsCallback stats_callback) {
  TORCHETTE_TRY(begin(inputs, config));
  return give(config, token_callback, stats_callback);
}

Error TextLLMRunner::give(const GenerationConfig& config, const TokenCallback& token_callback,
                          const StatsCallback& stats_callback) {
  for (bool is_last = false; !is_last;) {
    const Result<AnswerPiece> piece = next();
    if (!piece.ok()) return piece.error();
    if (token_callback && !config.warming && !piece->text.empty()) token_callback(piece->text);
    is_last = piece->is_last;
  }
  if (stats_callback && !config.warming) stats_callback(answer_->stats);
  return Error::Ok;
}

Result<std::unique_ptr<TextLLMRunner>> TextLLMRunner::fork() {
  TORCHETTE_TRY(load());
  auto other = std::make_unique<TextLLMRunner>(std::make_unique<Module>(module_), nullptr, temperature_);
  other->root_ = root_;
  other->tokenizer_ = tokenizer_;
  other->template_ = template_;
  other->vocabulary_ = vocabulary_;
  other->identity_ = identity_;
  other->adapter_ = adapter_;
  Result<std::unique_ptr<Decoder>> decoder = decoder_->on(other->module_);
  if (!decoder.ok()) return decoder.error();
  other->decoder_ = std::move(*decoder);
  TORCHETTE_TRY(other->load());
  const Result<std::vector<Decoder::Part>> from = decoder_->state(), to = other->decoder_->state();
  if (!from.ok()) return from.error();
  if (!to.ok()) return to.error();
  for (size_t i = 0; i < from->size(); ++i)
    if ((*from)[i].nbytes > 0) std::memcpy((*to)[i].bytes, (*from)[i].bytes, (*from)[i].nbytes);
  TORCHETTE_TRY(other->decoder_->restored());
  other->tokens_ = tokens_;
  // a file without names for its state: it is computed again
  other->num_run_ = from->empty() ? 0 : num_run_;
  return other;
}

Result<std::string> TextLLMRunner::identity() {
  if (!identity_->is_known) {  // two threads may find the same
    TORCHETTE_CHECK(root_->data_loader() != nullptr, NotSupported,
                    "the model came as a program, without the bytes of its file that a state is tied to");
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
  TORCHETTE_TRY(run(std::min(tokens_.size(), context), &logits));
  const Result<std::vector<Decoder::Part>> parts = decoder_->state();
  if (!parts.ok()) return parts.error();
  std::vector<uint64_t> tokens = tokens_;
  tokens.resize(std::min(tokens.size(), context));
  return write_state(*model, tokens, *parts, context);
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
    // a model without adapters takes no file, whatever it is
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
