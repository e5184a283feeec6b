// SPDX-License-Identifier: BSD-3-Clause
// Decoder: what a runner runs. In: tokens and where they stand. Out: logits of what follows them; keys and
// values of all positions stay. What a prompt has beside tokens gets numbers beyond the vocabulary that come
// from its content, so that a runner compares, keeps and forgets it like tokens.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torchette/extension/module.h"
#include "torchette/llm/media/multimodal_input.h"

namespace torchette::extension::llm {

/// The numbers that a method returns which takes nothing; none where there is no such method. Errors: those
/// of Module::execute().
Result<std::vector<double>> facts(Module& module, const char* name);

/// Sets `*out` to the first of facts(), or to `otherwise` if there is none. Errors: as above.
Error fact(Module& module, const char* name, int64_t otherwise, int64_t* out);

class Decoder {
 public:
  /// The last rows of float32; they may be changed, and last until the next step.
  struct Logits {
    float* data = nullptr;
    size_t rows = 0, size = 0;
    float* last() const { return data + (rows - 1) * size; }
  };
  /// A piece of a conversation's state, in place.
  struct Part {
    std::string name;
    ScalarType type;
    std::vector<int64_t> sizes;
    uint8_t* bytes;
    size_t nbytes;
  };
  struct Prompt {
    std::vector<uint64_t> tokens;
    bool is_whole = false;  // nothing can stand before it
  };

  /// The one for this program's methods: `text_decoder` beside an encoder, or `forward`. Errors: NotSupported
  /// (they are not those of a language model), those of Module::load_method().
  static Result<std::unique_ptr<Decoder>> make(std::shared_ptr<Module> module, size_t max_context);
  virtual ~Decoder() = default;

  /// Runs tokens[begin, end), which stand where they are in `tokens`; logits of the last or of all of them.
  virtual Result<Logits> step(const std::vector<uint64_t>& tokens, size_t begin, size_t end);
  /// Where a step that begins there ends at the latest.
  virtual size_t until(const std::vector<uint64_t>& tokens, size_t begin) const;
  /// A prompt whose texts are tokens already. Errors: InvalidArgument (what the model does not take).
  virtual Result<Prompt> place(const std::vector<MultimodalInput>& inputs);
  /// The state by name; empty where the program has no names for it. restored() is to follow a change.
  virtual Result<std::vector<Part>> state();
  virtual Error restored() { return Error::Ok; }
  /// What a prompt may have.
  enum class Reads : uint8_t { Tokens, Images, Audio, Text };
  virtual Reads reads() const { return Reads::Tokens; }
  /// The token of an image in chat templates; UINT64_MAX if the model reads no images.
  virtual uint64_t image_placeholder() const { return UINT64_MAX; }
  /// Whether tokens beyond the vocabulary may stand for something.
  virtual bool has_media() const { return false; }
  /// A decoder with a separate state, which is not initialized, on `module`.
  virtual Result<std::unique_ptr<Decoder>> on(std::shared_ptr<Module> module) const;
  /// Ends the current step with an error. May be called from any thread.
  virtual void cancel();
  /// Undoes a cancel() that came after the end of a step.
  virtual void undo_cancel();
  /// The memory of the methods in bytes, without weights.
  virtual Result<size_t> memory();

  size_t vocab_size() const { return vocab_size_; }
  size_t max_tokens() const { return max_tokens_; }
  size_t max_context() const { return max_context_; }
  /// The tensors that an adapter has, and the elements of each.
  using Adapter = std::vector<std::pair<std::string, size_t>>;
  static Result<Adapter> adapter_of(const Program& program);

 protected:
  Decoder(std::shared_ptr<Module> module, const char* method, size_t max_context)
      : module_(std::move(module)), method_(method), max_context_(max_context) {}
  /// Reads what the decoding method takes: `num_inputs` of them or one more.
  Error load(size_t num_inputs);
  Result<Tensor> execute(const char* method, const std::vector<TensorPtr>& inputs);
  Result<Logits> logits_of(const Result<Tensor>& tensor) const;

  std::shared_ptr<Module> module_;
  std::atomic<Method*> running_{nullptr};
  const char* method_;
  size_t max_context_, max_tokens_ = 1, vocab_size_ = 0, num_inputs_ = 0;
};

}  // namespace torchette::extension::llm
