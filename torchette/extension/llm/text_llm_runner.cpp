// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/llm/text_llm_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "torchette/extension/llm/json.h"
#include "torchette/extension/llm/sampler.h"
#include "torchette/extension/llm/unicode.h"
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

TextLLMRunner::TextLLMRunner(std::unique_ptr<Module> module, std::unique_ptr<Tokenizer> tokenizer,
                             float temperature)
    : module_(std::move(module)), tokenizer_(std::move(tokenizer)), temperature_(temperature) {}

Result<FreeableBuffer> TextLLMRunner::named_data(const char* name) const {
  const std::shared_ptr<Program> program = module_->program();
  return program ? program->get_data(name) : Result<FreeableBuffer>(Error::NotFound);
}

Error TextLLMRunner::read_metadata() {
  const Result<std::unordered_set<std::string>> names = module_->method_names();
  if (!names.ok()) return names.error();
  const auto numbers = [&](const char* name, std::vector<int64_t>* out) -> Error {
    if (names->count(name) == 0) return Error::Ok;
    const Result<std::vector<Value>> values = module_->execute(name);
    if (!values.ok()) return values.error();
    for (const Value& value : *values) {
      if (value.is_scalar()) out->push_back(value.to_int());
      if (value.tag() == Tag::ListInt)
        for (int64_t number : value.to_int_list()) out->push_back(number);
    }
    return Error::Ok;
  };
  const auto number = [&](const char* name, int64_t otherwise, int64_t* out) -> Error {
    std::vector<int64_t> found;
    TORCHETTE_TRY(numbers(name, &found));
    *out = found.empty() ? otherwise : found[0];
    return Error::Ok;
  };
  int64_t uses_cache = 1, is_dynamic = 1, begin = -1, end = -1;
  TORCHETTE_TRY(number("use_kv_cache", 1, &uses_cache));
  TORCHETTE_TRY(number("enable_dynamic_shape", 1, &is_dynamic));
  TORCHETTE_TRY(number("get_max_seq_len", 128, &max_prefill_));
  TORCHETTE_TRY(number("get_max_context_len", max_prefill_, &max_context_));
  TORCHETTE_TRY(number("get_bos_id", -1, &begin));
  TORCHETTE_TRY(number("get_eos_id", -1, &end));
  std::vector<int64_t> ends;
  TORCHETTE_TRY(numbers("get_eos_ids", &ends));
  if (ends.empty() && end >= 0) ends.push_back(end);
  if (begin >= 0) begin_ = static_cast<uint64_t>(begin);
  if (begin >= 0) tokenizer_->set_bos_tok(static_cast<uint64_t>(begin));
  for (int64_t id : ends)
    if (id >= 0) ends_.insert(static_cast<uint64_t>(id));
  if (!ends.empty() && ends[0] >= 0) end_ = static_cast<uint64_t>(ends[0]);
  if (!ends.empty() && ends[0] >= 0) tokenizer_->set_eos_tok(static_cast<uint64_t>(ends[0]));
  TORCHETTE_CHECK(uses_cache != 0, NotSupported, "the model was exported without its caches (use_kv_cache)");
  TORCHETTE_CHECK(max_prefill_ > 0 && max_context_ > 0, InvalidProgram, "the model takes %lld tokens of %lld",
                  static_cast<long long>(max_prefill_), static_cast<long long>(max_context_));
  if (is_dynamic == 0) max_prefill_ = 1;
  max_prefill_ = std::min(max_prefill_, max_context_);
  return Error::Ok;
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
  TORCHETTE_TRY(module_->load_forward());
  const Result<MethodMeta> meta = module_->method_meta("forward");
  if (!meta.ok()) return meta.error();
  bool fits = meta->num_inputs() == 2 && meta->num_outputs() >= 1;
  for (size_t i = 0; i < 2 && fits; ++i) {
    const Result<TensorInfo> info = meta->input_tensor_meta(i);
    fits = info.ok() && info->scalar_type() == ScalarType::Long;
  }
  TORCHETTE_CHECK(fits, NotSupported, "forward does not take tokens and a position, both int64 tensors");
  TORCHETTE_TRY(read_metadata());
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

Error TextLLMRunner::run(Span<float>* logits) {
  while (num_run_ < tokens_.size()) {
    const size_t count = std::min(tokens_.size() - num_run_, static_cast<size_t>(max_prefill_));
    auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(num_run_);
    std::vector<int64_t> chunk(begin, begin + static_cast<std::ptrdiff_t>(count));
    int64_t position = static_cast<int64_t>(num_run_);
    const TensorPtr tokens = from_blob(chunk.data(), {1, static_cast<SizesType>(count)}, ScalarType::Long);
    const TensorPtr start = from_blob(&position, {1}, ScalarType::Long);
    const Result<std::vector<Value>> outputs = module_->forward({Value(tokens), Value(start)});
    if (!outputs.ok()) return outputs.error();
    num_run_ += count;
    TORCHETTE_CHECK(!outputs->empty() && (*outputs)[0].is_tensor(), NotSupported, "forward gives no logits");
    const Tensor& given = (*outputs)[0].toTensor();
    TORCHETTE_CHECK(given.scalar_type() == ScalarType::Float && given.dim() >= 1 && given.numel() > 0,
                    NotSupported, "forward gives logits that are not float32");
    const auto size = static_cast<size_t>(given.size(given.dim() - 1));
    // of all tokens, where the model was exported so: the last row
    *logits = {given.mutable_data_ptr<float>() + static_cast<size_t>(given.numel()) - size, size};
    if (stopped_.load(std::memory_order_relaxed)) return Error::Ok;
  }
  return Error::Ok;
}

Error TextLLMRunner::prefill(const std::string& prompt, int32_t num_bos, int32_t num_eos) {
  TORCHETTE_TRY(load());
  GenerationConfig config;
  config.num_bos = num_bos;
  config.num_eos = num_eos;
  TORCHETTE_TRY(check(config));
  const Result<std::vector<uint64_t>> prompt_tokens = encode(prompt, config);
  if (!prompt_tokens.ok()) return prompt_tokens.error();
  TORCHETTE_CHECK(tokens_.size() + prompt_tokens->size() <= static_cast<size_t>(max_context_), OutOfResources,
                  "a prompt of %zu tokens behind %zu; the context has room for %lld", prompt_tokens->size(),
                  tokens_.size(), static_cast<long long>(max_context_));
  answer_.reset();
  tokens_.insert(tokens_.end(), prompt_tokens->begin(), prompt_tokens->end());
  stopped_.store(false, std::memory_order_relaxed);
  Span<float> logits;
  return run(&logits);
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
  Result<std::unique_ptr<Answer>> answer = prepare(config);
  if (!answer.ok()) return answer.error();
  const Result<std::vector<uint64_t>> tokens = encode(prompt, config);
  return tokens.ok() ? start(*tokens, std::move(*answer)) : tokens.error();
}

Error TextLLMRunner::begin_with(const std::vector<uint64_t>& conversation, const GenerationConfig& config) {
  Result<std::unique_ptr<Answer>> answer = prepare(config);
  if (!answer.ok()) return answer.error();
  TORCHETTE_CHECK(conversation.size() <= static_cast<size_t>(max_context_), OutOfResources,
                  "a conversation of %zu tokens; the context has room for %lld", conversation.size(),
                  static_cast<long long>(max_context_));
  size_t common = 0;
  while (common < std::min(conversation.size(), tokens_.size()) && conversation[common] == tokens_[common])
    ++common;
  TORCHETTE_TRY(rewind(common));
  const auto rest = conversation.begin() + static_cast<std::ptrdiff_t>(common);
  return start({rest, conversation.end()}, std::move(*answer));
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
  answer->keep = config.keep >= 0 ? static_cast<size_t>(config.keep) : first == begin_ ? 1 : 0;
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
  Span<float> logits;
  if (const Error error = run(&logits); error != Error::Ok) {
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
  std::vector<bool> allowed;
  if (answer.grammar) {
    const Result<const std::vector<bool>*> mask = answer.grammar->mask(answer.state, *vocabulary_);
    if (!mask.ok()) return mask.error();
    allowed = **mask;
    for (uint64_t end : ends_) {
      if (end >= allowed.size()) allowed.resize(std::min<size_t>(end + 1, logits.size()));
      if (end < allowed.size()) allowed[end] = Grammar::accepts(answer.state);
    }
  }
  const Result<uint64_t> token =
      answer.sampler.sample(logits, answer.history, answer.num_before, answer.grammar ? &allowed : nullptr);
  if (!token.ok()) return token.error();
  if (config.logprobs >= 0) add_logprobs(own, *token, static_cast<size_t>(config.logprobs), &piece);
  const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
  answer.sampling_ms += static_cast<double>(current_ticks() - sampling) *
                        static_cast<double>(ratio.numerator) / static_cast<double>(ratio.denominator) / 1e6;
  if (stats.num_generated_tokens == 0) stats.first_token_ms = time_in_ms();
  tokens_.push_back(*token);
  answer.history.push_back(*token);
  ++stats.num_generated_tokens;
  piece.token = *token;
  if (!config.ignore_eos && ends_.count(*token) != 0) {
    Result<AnswerPiece> last = end_with_rest("stop");
    if (last.ok()) last->token = *token, last->logprob = piece.logprob, last->top = std::move(piece.top);
    return last;
  }
  // a model may have more tokens than its tokenizer
  const Result<std::string> text = tokenizer_->has(*token) ? answer.stream.push(*token) : std::string();
  if (!text.ok()) return text.error();
  bool found = false;
  piece.text = answer.stops.push(*text, &found);
  if (found) {
    end("stop", &piece);
  } else if (answer.grammar && ends_.count(*token) == 0) {
    const Result<const Grammar::State*> state =
        answer.grammar->advance(answer.state, vocabulary_->tokens()[*token]);
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
  const auto give = [&](const std::string& piece) {
    if (token_callback && !config.warming && !piece.empty()) token_callback(piece);
  };
  if (config.echo) give(prompt);
  for (bool is_last = false; !is_last;) {
    const Result<AnswerPiece> piece = next();
    if (!piece.ok()) return piece.error();
    give(piece->text);
    is_last = piece->is_last;
  }
  if (stats_callback && !config.warming) stats_callback(answer_->stats);
  return Error::Ok;
}

Result<std::unique_ptr<TextLLMRunner>> TextLLMRunner::fork() {
  TORCHETTE_TRY(load());
  auto other = std::make_unique<TextLLMRunner>(std::make_unique<Module>(module_), nullptr, temperature_);
  other->tokenizer_ = tokenizer_;
  other->template_ = template_;
  other->vocabulary_ = vocabulary_;
  TORCHETTE_TRY(other->load());
  const Result<Method*> from = module_->method("forward"), to = other->module_->method("forward");
  if (!from.ok()) return from.error();
  if (!to.ok()) return to.error();
  const MethodMeta meta = (*from)->method_meta();
  for (size_t i = 0; i < meta.num_attributes(); ++i) {
    const Result<TensorInfo> info = meta.attribute_tensor_meta(i);
    if (!info.ok()) return info.error();
    const std::string name(info->name().data(), info->name().size());
    const Result<Tensor> source = (*from)->get_attribute(name.c_str());
    const Result<Tensor> target = (*to)->get_attribute(name.c_str());
    if (!source.ok()) return source.error();
    if (!target.ok()) return target.error();
    if (source->nbytes() > 0)
      std::memcpy(target->mutable_data_ptr(), source->const_data_ptr(), source->nbytes());
  }
  other->tokens_ = tokens_;
  // a file without names for its state: it is computed again
  other->num_run_ = meta.num_attributes() > 0 ? num_run_ : 0;
  return other;
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
