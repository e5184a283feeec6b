// SPDX-License-Identifier: BSD-3-Clause
// Decoder: computes the logits of the next token from tokens and their positions, and stores keys and values
// of all positions. Images and sounds of a prompt get ids greater than every token, which are hashes of their
// content, so a runner compares, keeps and drops them like tokens.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torchette/extension/module.h"
#include "torchette/llm/media/multimodal_input.h"

namespace torchette::extension::llm {

/// Returns the outputs of a constant method (one without inputs), or nothing if the program has no such
/// method. Errors: those of Module::execute().
Result<std::vector<double>> metadata(Module& module, const char* name);

/// Sets `*out` to the first value of metadata(), or to `otherwise` if there is none. Errors: as above.
Error metadata_value(Module& module, const char* name, int64_t otherwise, int64_t* out);

class Decoder {
 public:
  /// The last rows, float32. The caller may change them; they are valid until the next step.
  struct Logits {
    float* data = nullptr;
    size_t rows = 0, size = 0;
    float* last() const { return data + (rows - 1) * size; }
  };
  /// A tensor of a conversation's state, not copied.
  struct Part {
    std::string name;
    ScalarType type;
    std::vector<int64_t> sizes;
    uint8_t* bytes;
    size_t nbytes;
    /// Whether the part depends on all earlier tokens, and not one row per position.
    bool is_recurrent() const { return name.rfind("recurrent_", 0) == 0; }
  };
  struct Prompt {
    std::vector<uint64_t> tokens;
    bool begins_conversation = false;  // no other tokens can precede it
  };

  /// Returns the decoder for the program's methods: `text_decoder` with an encoder, or `forward`. Errors:
  /// NotSupported (the program is not a language model), those of Module::load_method().
  static Result<std::unique_ptr<Decoder>> make(std::shared_ptr<Module> module, size_t max_context);
  virtual ~Decoder() = default;

  /// Computes tokens[begin, end) at these positions. Returns the logits of the last token or of all of them.
  virtual Result<Logits> step(const std::vector<uint64_t>& tokens, size_t begin, size_t end);
  /// Returns the last possible end of a step that starts at `begin`.
  virtual size_t max_step_end(const std::vector<uint64_t>& tokens, size_t begin) const;
  /// Returns the tokens of a prompt with encoded texts. Errors: InvalidArgument (the model does not accept an
  /// input).
  virtual Result<Prompt> place(const std::vector<MultimodalInput>& inputs);
  /// Returns the state by name, or nothing if the program does not name it. Call restored() after a change.
  virtual Result<std::vector<Part>> state();
  virtual Error restored() { return Error::Ok; }
  /// Returns whether a part of the state is recurrent. Errors: those of state().
  virtual Result<bool> is_recurrent();
  /// The kind of input that a prompt may contain.
  enum class Reads : uint8_t { Tokens, Images, Audio, Text };
  virtual Reads reads() const { return Reads::Tokens; }
  /// The token of an image in chat templates; UINT64_MAX if the model reads no images.
  virtual uint64_t image_placeholder() const { return UINT64_MAX; }
  /// Whether ids beyond the vocabulary represent images or sounds.
  virtual bool has_media() const { return false; }
  /// Returns a decoder on `module` with a separate, uninitialized state.
  virtual Result<std::unique_ptr<Decoder>> on(std::shared_ptr<Module> module) const;
  /// Ends the current step with an error. May be called from any thread.
  virtual void cancel();
  /// Undoes a cancel() that came after the end of a step.
  virtual void undo_cancel();
  /// Returns the memory of the methods in bytes, without weights.
  virtual Result<size_t> memory();

  size_t vocab_size() const { return vocab_size_; }
  size_t max_tokens() const { return max_tokens_; }
  size_t max_context() const { return max_context_; }
  /// The tensors of an adapter with their element counts.
  using Adapter = std::vector<std::pair<std::string, size_t>>;
  static Result<Adapter> adapter_of(const Program& program);

 protected:
  Decoder(std::shared_ptr<Module> module, const char* method, size_t max_context)
      : module_(std::move(module)), method_(method), max_context_(max_context) {}
  /// Reads the signature of the decoding method, which must have `num_inputs` inputs or one more.
  Error load(size_t num_inputs);
  Result<Tensor> execute(const char* method, const std::vector<TensorPtr>& inputs);
  Result<Logits> logits_of(const Result<Tensor>& tensor) const;

  std::shared_ptr<Module> module_;
  std::atomic<Method*> running_{nullptr};
  const char* method_;
  size_t max_context_, max_tokens_ = 1, vocab_size_ = 0, num_inputs_ = 0;
};

}  // namespace torchette::extension::llm
