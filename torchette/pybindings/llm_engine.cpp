// SPDX-License-Identifier: BSD-3-Clause
// torchette.runtime._native.llm: conversations with language models (TextLLMRunner). A model is a program or
// a decoder that Python implements.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "torchette/llm/engine/callback_decoder.h"
#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/options.h"
#include "torchette/llm/engine/text_llm_runner.h"
#include "torchette/llm/media/wav.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/llm_text.h"
#include "torchette/pybindings/program.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/kernel.h"

namespace torchette::pybindings {
namespace {

using namespace extension::llm;

using FloatArray = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
/// An input. Arrays of numpy may be read-only.
using FloatInput = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

/// The exception of a decoder's method. Kept until the call of the engine returns.
thread_local std::exception_ptr raised;

/// A decoder that Python implements (torchette.llm.decoder.Decoder). Its functions acquire the GIL.
class PythonDecoder {
 public:
  explicit PythonDecoder(nb::object decoder) : decoder_(std::move(decoder)) {}
  /// The last reference may be a runner's draft, which the engine releases without the GIL.
  ~PythonDecoder() {
    const nb::gil_scoped_acquire acquire;
    arrays_.clear();
    state_.reset();
    logits_ = {};
    decoder_.reset();
  }
  PythonDecoder(const PythonDecoder&) = delete;
  PythonDecoder& operator=(const PythonDecoder&) = delete;

  static Result<std::unique_ptr<Decoder>> make(nb::object decoder) {
    const auto number = [&](const char* name) { return nb::cast<size_t>(decoder.attr(name)); };
    DecoderCallbacks callbacks;
    callbacks.vocab_size = number("vocab_size");
    callbacks.max_context = number("max_context");
    callbacks.max_tokens = number("max_tokens");
    callbacks.memory = number("memory");
    callbacks.has_media = nb::hasattr(decoder, "place");
    callbacks.is_recurrent = nb::cast<bool>(nb::getattr(decoder, "is_recurrent", nb::bool_(false)));
    const auto self = std::make_shared<PythonDecoder>(std::move(decoder));
    callbacks.step = [self](const std::vector<uint64_t>& tokens, size_t begin, size_t end) {
      return self->guarded<Decoder::Logits>([&] { return self->step(tokens, begin, end); });
    };
    callbacks.state = [self] {
      return self->guarded<std::vector<Decoder::Part>>([&] { return self->state(); });
    };
    callbacks.restored = [self] {
      return self
          ->guarded<bool>([&] {
            self->decoder_.attr("set_state")(self->state_);
            return true;
          })
          .error();
    };
    callbacks.copy = [self] {
      return self->guarded<std::unique_ptr<Decoder>>(
          [&] { return unwrap(make(self->decoder_.attr("new")())); });
    };
    callbacks.cancel = [self] {
      static_cast<void>(self->guarded<bool>([&] {
        self->decoder_.attr("cancel")();
        return true;
      }));
    };
    return make_callback_decoder(std::move(callbacks));
  }

 private:
  template <typename T, typename Function>
  Result<T> guarded(const Function& function) {
    const nb::gil_scoped_acquire acquire;
    try {
      return function();
    } catch (...) {
      raised = std::current_exception();
      return Error::DelegateInvalidHandle;
    }
  }

  Decoder::Logits step(const std::vector<uint64_t>& tokens, size_t begin, size_t end) {
    nb::list token_list;
    for (size_t i = begin; i < end; ++i) token_list.append(tokens[i]);
    const nb::module_ numpy = nb::module_::import_("numpy");
    const nb::object logits = decoder_.attr("step")(token_list, begin);
    logits_ = nb::cast<FloatArray>(
        numpy.attr("array")(logits, nb::arg("dtype") = "float32", nb::arg("order") = "C"));
    const size_t size = nb::cast<size_t>(decoder_.attr("vocab_size"));
    if (logits_.size() == 0 || logits_.size() % size != 0)
      throw nb::value_error("step() of the decoder must return logits of shape [tokens, vocab_size]");
    return {logits_.data(), logits_.size() / size, size};
  }

  std::vector<Decoder::Part> state() {
    const nb::module_ numpy = nb::module_::import_("numpy");
    state_ = nb::dict();
    arrays_.clear();
    std::vector<Decoder::Part> parts;
    for (const auto [name, value] : nb::cast<nb::dict>(decoder_.attr("state")())) {
      state_[name] = numpy.attr("array")(value, nb::arg("order") = "C");
      const auto array = nb::cast<nb::ndarray<nb::c_contig, nb::device::cpu>>(state_[name]);
      std::vector<int64_t> sizes(array.shape_ptr(), array.shape_ptr() + array.ndim());
      parts.push_back({nb::cast<std::string>(name), scalar_type_of(array.dtype()), std::move(sizes),
                       static_cast<uint8_t*>(array.data()), array.nbytes()});
      arrays_.push_back(array);
    }
    return parts;
  }

  nb::object decoder_;
  FloatArray logits_;
  nb::dict state_;  // copies, since the engine may change the arrays
  std::vector<nb::ndarray<nb::c_contig, nb::device::cpu>> arrays_;
};

/// An image of shape [channels, height, width], uint8 or float32.
Image image_of(nb::handle object) {
  if (nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu> bytes;
      nb::try_cast(object, bytes, /*convert=*/false)) {
    return {std::vector<uint8_t>(bytes.data(), bytes.data() + bytes.size()),
            static_cast<int32_t>(bytes.shape(2)), static_cast<int32_t>(bytes.shape(1)),
            static_cast<int32_t>(bytes.shape(0))};
  }
  nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu> numbers;
  if (!nb::try_cast(object, numbers))
    throw Fault{Fault::Kind::Runtime, Error::InvalidArgument,
                "an image must be uint8 [height, width, 3] or float32 [3, height, width]", 0};
  return {std::vector<float>(numbers.data(), numbers.data() + numbers.size()),
          static_cast<int32_t>(numbers.shape(2)), static_cast<int32_t>(numbers.shape(1)),
          static_cast<int32_t>(numbers.shape(0))};
}

nb::tuple tuple_of_piece(const AnswerPiece& piece, bool has_logprobs) {
  nb::list top;
  for (const AnswerPiece::TokenLogprob& entry : piece.top)
    top.append(nb::make_tuple(entry.token, static_cast<double>(entry.logprob)));
  return nb::make_tuple(
      text_of({piece.text.data(), piece.text.size()}), piece.token ? nb::cast(*piece.token) : nb::none(),
      has_logprobs && piece.token ? nb::cast(static_cast<double>(piece.logprob)) : nb::none(), nb::tuple(top),
      piece.is_last);
}

/// A conversation. Not thread-safe, except for cancel().
class Runner {
  static Error error_of(Error error) { return error; }
  template <typename T>
  static Error error_of(const Result<T>& result) {
    return result.ok() ? Error::Ok : result.error();
  }
  static void value_of(Error) {}
  template <typename T>
  static T value_of(Result<T>&& result) {
    return std::move(*result);
  }

  /// Exclusive use of a conversation by one thread. Throws if another thread uses it.
  class Use {
   public:
    explicit Use(std::shared_ptr<std::atomic<bool>> flag) {
      if (flag == nullptr) return;
      if (flag->exchange(true))
        throw Fault{Fault::Kind::Runtime, Error::InvalidState, "another thread uses the session", 0};
      flag_ = std::move(flag);
    }
    Use(const Use&) = delete;
    ~Use() {
      if (flag_ != nullptr) *flag_ = false;
    }

   private:
    std::shared_ptr<std::atomic<bool>> flag_;
  };

  /// Calls the engine without the GIL. Throws its error, or the exception that a Python decoder raised.
  template <typename Function>
  auto call(const Function& function) {
    const Use use(is_used_), use_of_draft(draft_is_used_);
    raised = nullptr;
    std::string log;
    auto result = [&] {
      const nb::gil_scoped_release release;
      const LogScope log_scope;
      take_log();
      auto value = function();
      log = take_log();
      return value;
    }();
    const Error error = error_of(result);
    if (error != Error::Ok && raised) std::rethrow_exception(std::exchange(raised, nullptr));
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (error != Error::Ok) throw Fault{Fault::Kind::Runtime, error, std::move(log), 0};
    return value_of(std::move(result));
  }

 public:
  /// `tokenizer` may be null. `num_threads` is 0 for the default of the process.
  Runner(SharedProgram program, const TokenizerHolder* tokenizer, size_t num_threads)
      : program_(std::move(program)) {
    if (num_threads != 0) check(program_->module()->set_num_threads(num_threads));
    runner_ = std::make_unique<TextLLMRunner>(program_->module(), tokenizer ? tokenizer->tokenizer : nullptr);
    call([&] { return runner_->load(); });
  }
  Runner(nb::object decoder, const TokenizerHolder* tokenizer, const nb::dict& named_data, int64_t begin,
         const std::vector<uint64_t>& ends) {
    TextLLMRunner::NamedData named;
    for (const auto [name, data] : named_data) {
      const auto bytes = nb::cast<nb::bytes>(data);
      named.emplace(nb::cast<std::string>(name), std::string(bytes.c_str(), bytes.size()));
    }
    runner_ = std::make_unique<TextLLMRunner>(unwrap(PythonDecoder::make(std::move(decoder))),
                                              tokenizer ? tokenizer->tokenizer : nullptr, std::move(named),
                                              begin < 0 ? UINT64_MAX : static_cast<uint64_t>(begin), ends);
  }
  Runner(const Runner&) = delete;

  std::vector<uint64_t> place(const std::vector<uint64_t>& tokens, const nb::sequence& images,
                              nb::handle samples, nb::handle features) {
    std::vector<MultimodalInput> inputs = {make_token_input(tokens)};
    for (const nb::handle image : images) inputs.push_back(make_image_input(image_of(image)));
    if (!samples.is_none()) {
      const auto array = nb::cast<FloatInput>(samples);
      inputs.push_back(make_raw_audio_input(RawAudio::of(array.data(), array.size())));
    }
    if (!features.is_none()) {
      const auto array = nb::cast<FloatInput>(features);
      inputs.push_back(make_audio_input(Audio(
          std::vector<float>(array.data(), array.data() + array.size()), static_cast<int32_t>(array.shape(0)),
          static_cast<int32_t>(array.shape(1)), static_cast<int32_t>(array.shape(2)))));
    }
    return call([&] { return runner_->place_prompt(inputs); });
  }

  /// Starts an answer to a conversation. `options` are members of GenerationConfig in JSON.
  void begin(const std::vector<uint64_t>& tokens, const std::string& options, Runner* draft,
             int32_t num_draft) {
    draft_is_used_ = draft ? draft->is_used_ : nullptr;
    call([&]() -> Error {
      Result<GenerationConfig> config = runner_->default_config();
      if (!config.ok()) return config.error();
      TORCHETTE_TRY(read_config(options, &*config));
      has_logprobs_ = config->logprobs >= 0;
      runner_->set_draft(draft ? draft->runner_ : nullptr, num_draft);
      return runner_->begin_with(tokens, *config);
    });
  }

  nb::tuple next() {
    AnswerPiece piece = call([&] { return runner_->next(); });
    return tuple_of_piece(piece, has_logprobs_);
  }

  nb::dict stats() const {
    const Use use(is_used_);
    const Stats stats = runner_->stats();
    nb::dict items;
    items["prompt_tokens"] = stats.num_prompt_tokens;
    items["reused_tokens"] = stats.num_reused_tokens;
    items["generated_tokens"] = stats.num_generated_tokens;
    items["drafted_tokens"] = stats.num_drafted_tokens;
    items["accepted_tokens"] = stats.num_accepted_tokens;
    items["finish_reason"] = stats.finish_reason;
    items["is_full"] = runner_->tokens().size() > static_cast<size_t>(runner_->max_context_len());
    return items;
  }

  nb::dict default_options() const {
    take_log();  // no Use: reads only the file, so other threads may generate
    const GenerationConfig config = unwrap(runner_->default_config());
    nb::dict items;
    for_each_option(config, [&](const Option& option, const auto& member) {
      if constexpr (std::is_arithmetic_v<std::remove_reference_t<decltype(member)>>)
        if (option.is_sampling_number()) items[option.name] = member;
    });
    return items;
  }

  nb::tuple tokens() const {
    const Use use(is_used_);
    nb::list items;
    for (size_t i = 0; i < runner_->num_cached(); ++i) items.append(runner_->tokens()[i]);
    return nb::tuple(items);
  }

  void rewind(size_t count) {
    call([&] { return runner_->rewind(count); });
  }
  std::unique_ptr<Runner> fork(bool with_state) {
    std::unique_ptr<Runner> other(new Runner);
    other->program_ = program_;
    other->runner_ = call([&] { return with_state ? runner_->fork() : runner_->new_conversation(); });
    return other;
  }
  nb::bytes state() {
    const std::vector<uint8_t> bytes = call([&] { return runner_->state(); });
    return nb::bytes(bytes.data(), bytes.size());
  }
  void set_state(const nb::bytes& bytes) {
    call([&] { return runner_->set_state({static_cast<const uint8_t*>(bytes.data()), bytes.size()}); });
  }
  void set_adapter(const std::string& path) {
    call([&] { return runner_->set_adapter(path); });
  }
  void cancel() { runner_->stop(); }

  size_t memory() {
    return call([&] { return runner_->memory(); });
  }
  size_t vocab_size() const { return runner_->vocab_size(); }
  nb::tuple model_info() const {
    static constexpr const char* kInputKinds[] = {"tokens", "images", "audio", "text"};
    const auto number = [](uint64_t token) {
      return token == UINT64_MAX ? int64_t{-1} : static_cast<int64_t>(token);
    };
    const Decoder& decoder = *runner_->decoder();
    nb::list ends;
    for (uint64_t token : runner_->ends())
      if (token < vocab_size()) ends.append(token);
    return nb::make_tuple(kInputKinds[static_cast<size_t>(decoder.reads())],
                          number(decoder.image_placeholder()), number(runner_->begin_token()),
                          number(runner_->end_token()), nb::tuple(ends));
  }
  int64_t max_context() const { return runner_->max_context_len(); }

 private:
  Runner() = default;

  SharedProgram program_;  // first, so that it is destroyed last; null for a Python decoder
  std::shared_ptr<TextLLMRunner> runner_;
  std::shared_ptr<std::atomic<bool>> is_used_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<bool>> draft_is_used_;  // null without a draft
  bool has_logprobs_ = false;
};

}  // namespace

void bind_llm_engine(nb::module_& m) {
  nb::class_<Runner>(m, "Runner")
      .def(nb::init<SharedProgram, const TokenizerHolder*, size_t>(), nb::arg("program"),
           nb::arg("tokenizer").none(), nb::arg("num_threads"))
      .def(nb::init<nb::object, const TokenizerHolder*, const nb::dict&, int64_t,
                    const std::vector<uint64_t>&>(),
           nb::arg("decoder"), nb::arg("tokenizer").none(), nb::arg("named_data"), nb::arg("begin"),
           nb::arg("ends"))
      .def("place", &Runner::place, nb::arg("tokens"), nb::arg("images"), nb::arg("samples").none(),
           nb::arg("features").none())
      .def("begin", &Runner::begin, nb::arg("tokens"), nb::arg("options"), nb::arg("draft").none(),
           nb::arg("num_draft"))
      .def("next", &Runner::next)
      .def("stats", &Runner::stats)
      .def("default_options", &Runner::default_options)
      .def("rewind", &Runner::rewind)
      .def("fork", &Runner::fork)
      .def("state", &Runner::state)
      .def("set_state", &Runner::set_state)
      .def("set_adapter", &Runner::set_adapter)
      .def("cancel", &Runner::cancel)
      .def_prop_ro("tokens", &Runner::tokens)
      .def_prop_ro("memory", &Runner::memory)
      .def_prop_ro("model_info", &Runner::model_info)
      .def_prop_ro("vocab_size", &Runner::vocab_size)
      .def_prop_ro("max_context", &Runner::max_context);
  m.def("read_wav", [](const nb::bytes& bytes) {
    take_log();
    const std::vector<float> samples =
        unwrap(read_wav({static_cast<const uint8_t*>(bytes.data()), bytes.size()}));
    return nb::bytes(samples.data(), samples.size() * sizeof(float));
  });
}

}  // namespace torchette::pybindings
