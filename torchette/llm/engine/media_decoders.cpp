// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/media_decoders.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>

#include "torchette/extension/receipt.h"
#include "torchette/llm/media/features.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

/// The number of images and sounds that a decoder keeps, so that it can recompute a context that slides.
constexpr size_t kMaxMedia = 64;
constexpr int kRowBits = 16;  // the low bits of an id, which are the row

/// An image, sound or text for an encoder. Its id is greater than every token.
struct Media {
  uint64_t id = 0;
  std::vector<SizesType> sizes;  // of the encoder's input
  std::vector<float> values;     // the encoder's input, if it is not text
  std::vector<int64_t> tokens;   // the encoder's input, if it is text
  uint64_t first = 0;            // the decoder's first token
  std::vector<float> rows;       // the result of an image encoder
};

class MediaDecoder : public Decoder {
 public:
  bool has_media() const override { return true; }

 protected:
  MediaDecoder(std::shared_ptr<Module> module, const char* encoder, size_t max_context)
      : Decoder(std::move(module), "text_decoder", max_context), encoder_(encoder) {}

  Error load_encoder(size_t num_inputs) {
    TORCHETTE_TRY(load(num_inputs));
    TORCHETTE_TRY(module_->load_method(encoder_));
    const Result<MethodMeta> meta = module_->method_meta(encoder_);
    if (!meta.ok()) return meta.error();
    const Result<TensorInfo> in = meta->input_tensor_meta(0), out = meta->output_tensor_meta(0);
    TORCHETTE_CHECK(meta->num_inputs() == 1 && in.ok() && out.ok(), NotSupported,
                    "%s must have one input and one output, both tensors", encoder_);
    sizes_.assign(in->sizes().begin(), in->sizes().end());
    result_.assign(out->sizes().begin(), out->sizes().end());
    is_dynamic_ = in->shape_dynamism() != TensorShapeDynamism::STATIC;
    reads_text_ = sizes_.size() == 2 && in->scalar_type() == ScalarType::Long;
    TORCHETTE_CHECK(reads_text_ || in->scalar_type() == ScalarType::Float, NotSupported,
                    "the input of %s must be tokens or float32", encoder_);
    return Error::Ok;
  }

  /// Returns an encoder input. Sizes of 1 are prepended up to the encoder's rank.
  Result<Media> encoder_input(std::vector<float> values, std::vector<int64_t> sizes, const char* what) const {
    Media media;
    while (sizes.size() < sizes_.size()) sizes.insert(sizes.begin(), 1);
    bool fits = sizes.size() == sizes_.size();
    size_t count = 1;
    for (size_t i = 0; i < sizes_.size() && fits; ++i) {
      fits = sizes[i] == sizes_[i] || (is_dynamic_ && sizes[i] > 0 && sizes[i] < sizes_[i]);
      media.sizes.push_back(static_cast<SizesType>(sizes[i]));
      count *= fits ? static_cast<size_t>(sizes[i]) : 0;
    }
    std::string given, expected;
    for (int64_t n : sizes) given += (given.empty() ? "" : ", ") + std::to_string(n);
    for (SizesType n : sizes_) expected += (expected.empty() ? "" : ", ") + std::to_string(n);
    TORCHETTE_CHECK(fits && count == values.size(), InvalidArgument,
                    "%s has the shape [%s], the model accepts [%s]", what, given.c_str(), expected.c_str());
    for (float value : values)
      TORCHETTE_CHECK(std::isfinite(value), InvalidArgument, "%s contains NaN or infinity", what);
    media.values = std::move(values);
    return media;
  }

  /// Stores the input and returns its id, a hash of the content. The following ids are its rows.
  uint64_t keep(Media media) {
    std::vector<uint8_t> content(media.sizes.size() * 8 + media.values.size() * 4 + media.tokens.size() * 8);
    uint8_t* to = content.data();
    const auto add = [&](const void* from, size_t size) {
      if (size > 0) std::memcpy(to, from, size);
      to += size;
    };
    const std::vector<int64_t> sizes(media.sizes.begin(), media.sizes.end());
    add(sizes.data(), sizes.size() * 8);
    add(media.values.data(), media.values.size() * 4);
    add(media.tokens.data(), media.tokens.size() * 8);
    media.id =
        vocab_size_ + ((xxh64(content.data(), content.size()) & ((uint64_t{1} << 40) - 1)) << kRowBits);
    for (auto one = known_.begin(); one != known_.end(); ++one)
      if (one->id == media.id) {
        media.rows = std::move(one->rows);
        known_.erase(one);
        break;
      }
    known_.push_back(std::move(media));
    if (known_.size() > kMaxMedia) known_.pop_front();
    return known_.back().id;
  }

  Result<Media*> find(uint64_t id) {
    for (Media& one : known_)
      if (one.id == id) return &one;
    TORCHETTE_LOG(Error, "an image or sound of the prompt is no longer stored: provide the prompt again");
    return Error::InvalidState;
  }

  Result<Tensor> encode(Media& media) {
    return execute(encoder_,
                   {media.tokens.empty() ? from_blob(media.values.data(), media.sizes, ScalarType::Float)
                                         : from_blob(media.tokens.data(), media.sizes, ScalarType::Long)});
  }

  const char* encoder_;
  std::vector<SizesType> sizes_, result_;  // of the encoder's input and output
  bool is_dynamic_ = false, reads_text_ = false;
  std::list<Media> known_;
};

/// A decoder that attends to the result of the method `encoder`: an input of `text_decoder`.
class CrossDecoder final : public MediaDecoder {
 public:
  static Result<std::unique_ptr<Decoder>> make(std::shared_ptr<Module> module, size_t max_context) {
    std::unique_ptr<CrossDecoder> made(new CrossDecoder(std::move(module), "encoder", max_context));
    TORCHETTE_TRY(made->load_encoder(3));
    for (const char* name : {"get_bos_id", "decoder_start_token_id"}) {
      const Result<std::vector<double>> start = metadata(*made->module_, name);
      if (!start.ok()) return start.error();
      if (!start->empty() && start->front() >= 0) made->start_ = static_cast<uint64_t>(start->front());
    }
    const Result<std::vector<double>> step = metadata(*made->module_, "audio_step");
    if (!step.ok()) return step.error();
    if (step->size() == 2 && (*step)[0] >= 1 && (*step)[1] >= 0) {
      made->audio_step_ = static_cast<size_t>((*step)[0]);
      made->audio_rest_ = static_cast<size_t>((*step)[1]);
    }
    const Result<MethodMeta> meta = made->module_->method_meta("text_decoder");
    const Result<TensorInfo> info = meta->input_tensor_meta(1);
    TORCHETTE_CHECK(info.ok() && info->sizes().size() == 4 && info->scalar_type() == ScalarType::Float,
                    NotSupported, "input 1 of text_decoder must be the keys and values of an encoder");
    made->max_sizes_.assign(info->sizes().begin(), info->sizes().end());
    made->encoded_.resize(made->size_of(1));
    return std::unique_ptr<Decoder>(std::move(made));
  }

  Reads reads() const override { return reads_text_ ? Reads::Text : Reads::Audio; }

  Result<Prompt> place(const std::vector<MultimodalInput>& inputs) override {
    std::vector<uint64_t> tokens;
    const MultimodalInput* sound = nullptr;
    for (const MultimodalInput& input : inputs) {
      if (input.is_tokens()) {
        tokens.insert(tokens.end(), input.get_tokens().begin(), input.get_tokens().end());
        continue;
      }
      TORCHETTE_CHECK(!input.is_image() && !reads_text_ && sound == nullptr, InvalidArgument,
                      "this model reads only %s", reads_text_ ? "text" : "one sound");
      sound = &input;
    }
    if (reads_text_
            ? tokens.empty()
            : sound == nullptr)  // the encoder's input is unchanged, so these tokens continue the answer
      return Prompt{tokens, false};
    Media media;
    if (reads_text_) {
      TORCHETTE_CHECK(tokens.size() <= static_cast<size_t>(sizes_[1]), OutOfResources,
                      "the prompt has %zu tokens, the encoder accepts 1 to %d", tokens.size(),
                      static_cast<int>(sizes_[1]));
      media.sizes = {1, static_cast<SizesType>(tokens.size())};
      media.tokens.assign(tokens.begin(), tokens.end());
      tokens.clear();
    } else {
      Result<Media> heard = hear(*sound);
      if (!heard.ok()) return heard.error();
      media = std::move(*heard);
    }
    if (tokens.empty()) tokens.push_back(start_);
    media.first = tokens[0];
    tokens[0] = keep(std::move(media));
    return Prompt{tokens, true};
  }

  Result<Logits> step(const std::vector<uint64_t>& tokens, size_t begin, size_t end) override {
    std::vector<int64_t> chunk(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                               tokens.begin() + static_cast<std::ptrdiff_t>(end));
    if (begin == 0) {
      TORCHETTE_CHECK(tokens[0] >= vocab_size_, InvalidArgument, "this model answers to %s first",
                      reads_text_ ? "a text" : "sound");
      const bool is_read = current_[1] == static_cast<int64_t>(tokens[0]);
      const Result<Media*> media = is_read && reads_text_ ? nullptr : find(tokens[0]);
      if (!media.ok()) return media.error();
      chunk[0] = static_cast<int64_t>(*media == nullptr ? start_ : (*media)->first);
      if (!is_read) {
        const Result<Tensor> output = encode(**media);
        if (!output.ok()) return output.error();
        const bool fits = output->dim() == 4 && output->size(0) == max_sizes_[0] &&
                          output->size(1) == max_sizes_[1] && output->size(2) <= max_sizes_[2] &&
                          output->size(3) == max_sizes_[3];
        TORCHETTE_CHECK(fits, NotSupported, "the encoder's output does not fit input 1 of text_decoder");
        encoded_.assign(output->const_data_ptr<float>(), output->const_data_ptr<float>() + output->numel());
        current_[0] = output->size(2);
        current_[1] = static_cast<int64_t>(tokens[0]);
      }
    }
    auto position = static_cast<int64_t>(begin);
    const auto rows = static_cast<SizesType>(current_[0]);
    return logits_of(execute(
        method_,
        {from_blob(chunk.data(), {1, static_cast<SizesType>(chunk.size())}, ScalarType::Long),
         from_blob(encoded_.data(), {max_sizes_[0], max_sizes_[1], rows, max_sizes_[3]}, ScalarType::Float),
         from_blob(&position, {1}, ScalarType::Long)}));
  }

  /// Adds the encoder's result, padded to the maximum number of rows.
  Result<std::vector<Part>> state() override {
    Result<std::vector<Part>> parts = Decoder::state();
    if (!parts.ok() || parts->empty()) return parts;
    padded_.assign(size_of(max_sizes_[2]), 0);
    copy_rows(encoded_.data(), static_cast<size_t>(current_[0]), padded_.data(),
              static_cast<size_t>(max_sizes_[2]));
    parts->push_back({"encoded",
                      ScalarType::Float,
                      {max_sizes_.begin(), max_sizes_.end()},
                      reinterpret_cast<uint8_t*>(padded_.data()),
                      padded_.size() * sizeof(float)});
    parts->push_back(
        {"encoded_rows", ScalarType::Long, {2}, reinterpret_cast<uint8_t*>(current_), sizeof(current_)});
    return parts;
  }
  Error restored() override {
    if (padded_.empty()) return Error::Ok;
    current_[0] = std::clamp<int64_t>(current_[0], 1, max_sizes_[2]);
    encoded_.assign(size_of(current_[0]), 0);
    copy_rows(padded_.data(), static_cast<size_t>(max_sizes_[2]), encoded_.data(),
              static_cast<size_t>(current_[0]));
    padded_.clear();
    return Error::Ok;
  }
  Result<std::unique_ptr<Decoder>> on(std::shared_ptr<Module> module) const override {
    Result<std::unique_ptr<Decoder>> made = make(std::move(module), max_context_);
    if (made.ok()) static_cast<CrossDecoder*>(made->get())->known_ = known_;
    return made;
  }

 private:
  using MediaDecoder::MediaDecoder;

  size_t size_of(int64_t rows) const {
    return static_cast<size_t>(max_sizes_[0]) * static_cast<size_t>(max_sizes_[1]) *
           static_cast<size_t>(rows) * static_cast<size_t>(max_sizes_[3]);
  }
  void copy_rows(const float* from, size_t from_rows, float* to, size_t to_rows) const {
    const auto depth = static_cast<size_t>(max_sizes_[3]);
    const auto heads = static_cast<size_t>(max_sizes_[0]) * static_cast<size_t>(max_sizes_[1]);
    for (size_t head = 0; head < heads; ++head)
      std::copy_n(from + head * from_rows * depth, std::min(from_rows, to_rows) * depth,
                  to + head * to_rows * depth);
  }

  Result<Media> hear(const MultimodalInput& input) const {
    if (input.is_audio()) {
      const Audio& audio = input.get_audio();
      return encoder_input(audio.get_float_data(),
                           {audio.get_batch_size(), audio.get_n_bins(), audio.get_n_frames()}, "audio");
    }
    const RawAudio& raw = input.get_raw_audio();
    TORCHETTE_CHECK(raw.batch_size == 1 && raw.n_channels == 1 && raw.n_samples > 0 &&
                        raw.data.size() == static_cast<size_t>(raw.n_samples) * sizeof(float),
                    InvalidArgument, "sound must be one channel of float32 with n_samples samples");
    std::vector<float> samples(static_cast<size_t>(raw.n_samples));
    std::memcpy(samples.data(), raw.data.data(), raw.data.size());
    for (float sample : samples)
      TORCHETTE_CHECK(std::isfinite(sample), InvalidArgument, "the sound contains NaN or infinity");
    if (sizes_.size() == 3) {
      const size_t longest = static_cast<size_t>(sizes_[2]) * kSamplesPerFrame;
      TORCHETTE_CHECK(samples.size() <= longest, InvalidArgument,
                      "audio has %.1f s, the model accepts at most %.1f s; split it",
                      static_cast<double>(samples.size()) / kSampleRate,
                      static_cast<double>(longest) / kSampleRate);
      return encoder_input(log_mel(samples.data(), samples.size(), static_cast<size_t>(sizes_[1]),
                                   static_cast<size_t>(sizes_[2])),
                           {1, sizes_[1], sizes_[2]}, "audio");
    }
    if (audio_step_ > 0) {
      const size_t size = samples.size(), rest = audio_rest_;
      samples.resize(std::min(size, (size > rest ? (size - rest) / audio_step_ * audio_step_ : 0) + rest));
    }
    const auto size = static_cast<int64_t>(samples.size());
    return encoder_input(std::move(samples), {size}, "audio");
  }

  std::vector<SizesType> max_sizes_;
  std::vector<float> encoded_, padded_;
  int64_t current_[2] = {1, -1};  // the number of rows of `encoded_`, and the id of its input
  uint64_t start_ = 0;
  size_t audio_step_ = 0, audio_rest_ = 0;  // valid lengths are audio_step_ * n + audio_rest_
};

/// A decoder with the methods `vision_encoder` and `token_embedding`: their rows are the input of
/// `text_decoder`.
class ImageDecoder final : public MediaDecoder {
 public:
  static Result<std::unique_ptr<Decoder>> make(std::shared_ptr<Module> module, size_t max_context) {
    std::unique_ptr<ImageDecoder> made(new ImageDecoder(std::move(module), "vision_encoder", max_context));
    TORCHETTE_TRY(made->load_encoder(2));
    TORCHETTE_TRY(made->module_->load_method("token_embedding"));
    for (auto [name, to] : {std::pair{"image_mean", &made->mean_}, {"image_std", &made->std_}}) {
      const Result<std::vector<double>> found = metadata(*made->module_, name);
      if (!found.ok()) return found.error();
      if (found->size() == 3) *to = *found;
    }
    TORCHETTE_TRY(made->read_image_tokens());
    TORCHETTE_CHECK(made->sizes_.size() == 4 && made->result_.size() == 3 && made->result_[1] > 0,
                    NotSupported, "vision_encoder must return rows for one image");
    made->count_ = static_cast<size_t>(made->result_[1]);
    made->in_blocks_ = made->num_inputs_ == 3;
    TORCHETTE_CHECK(!made->in_blocks_ || made->count_ <= made->max_tokens_, NotSupported,
                    "an image has %zu rows, a step accepts %zu", made->count_, made->max_tokens_);
    return std::unique_ptr<Decoder>(std::move(made));
  }

  Reads reads() const override { return Reads::Images; }
  uint64_t image_placeholder() const override { return placeholder_; }

  /// Images replace the image tokens of the prompt. A prompt without image tokens contains them between its
  /// parts.
  Result<Prompt> place(const std::vector<MultimodalInput>& inputs) override {
    const auto is_image_token = [&](uint64_t token) { return token == token_ || token == placeholder_; };
    std::vector<uint64_t> tokens, rows, between;
    bool has_image_tokens = false;
    for (const MultimodalInput& input : inputs) {
      if (input.is_tokens()) {
        const std::vector<uint64_t>& given = input.get_tokens();
        has_image_tokens = has_image_tokens || std::any_of(given.begin(), given.end(), is_image_token);
        tokens.insert(tokens.end(), given.begin(), given.end());
        between.insert(between.end(), given.begin(), given.end());
        continue;
      }
      TORCHETTE_CHECK(input.is_image(), InvalidArgument, "this model reads text and images, not audio");
      const Result<uint64_t> number = keep_image(input.get_image(), rows.size() / count_);
      if (!number.ok()) return number.error();
      for (size_t row = 0; row < count_; ++row) rows.push_back(*number + row);
      between.insert(between.end(), rows.end() - static_cast<std::ptrdiff_t>(count_), rows.end());
    }
    Prompt prompt;
    if (!has_image_tokens) {
      prompt.tokens = std::move(between);
      return prompt;
    }
    tokens = wrapped(std::move(tokens));
    const auto spots = static_cast<size_t>(std::count(tokens.begin(), tokens.end(), token_));
    TORCHETTE_CHECK(spots == rows.size() || spots * count_ == rows.size(), InvalidArgument,
                    "the prompt has %zu tokens of images for %zu images; each image has the token %llu once, "
                    "or %zu times",
                    spots, rows.size() / count_, static_cast<unsigned long long>(token_), count_);
    const size_t each = spots == rows.size() ? 1 : count_;
    size_t at = 0;
    for (uint64_t token : tokens) {
      if (token != token_) {
        prompt.tokens.push_back(token);
        continue;
      }
      const auto first = rows.begin() + static_cast<std::ptrdiff_t>(at);
      prompt.tokens.insert(prompt.tokens.end(), first, first + static_cast<std::ptrdiff_t>(each));
      at += each;
    }
    return prompt;
  }

  Result<Logits> step(const std::vector<uint64_t>& tokens, size_t begin, size_t end) override {
    const size_t count = end - begin;
    std::vector<int64_t> plain(count);
    for (size_t i = 0; i < count; ++i)
      plain[i] = tokens[begin + i] < vocab_size_ ? static_cast<int64_t>(tokens[begin + i]) : 0;
    const Result<Tensor> found = execute(
        "token_embedding", {from_blob(plain.data(), {1, static_cast<SizesType>(count)}, ScalarType::Long)});
    if (!found.ok()) return found.error();
    const auto width = static_cast<size_t>(found->size(found->dim() - 1));
    TORCHETTE_CHECK(static_cast<size_t>(found->numel()) == count * width, NotSupported,
                    "token_embedding does not return one row per token");
    std::vector<float> rows(found->const_data_ptr<float>(), found->const_data_ptr<float>() + found->numel());
    for (size_t i = 0; i < count; ++i) {
      const uint64_t token = tokens[begin + i];
      if (token < vocab_size_) continue;
      const Result<Media*> media = find(token - row_of(token));
      if (!media.ok()) return media.error();
      if ((*media)->rows.empty()) {
        const Result<Tensor> seen = encode(**media);
        if (!seen.ok()) return seen.error();
        TORCHETTE_CHECK(static_cast<size_t>(seen->numel()) == count_ * width, NotSupported,
                        "vision_encoder does not return %zu rows of %zu values", count_, width);
        (*media)->rows.assign(seen->const_data_ptr<float>(), seen->const_data_ptr<float>() + seen->numel());
      }
      std::copy_n((*media)->rows.begin() + static_cast<std::ptrdiff_t>(row_of(token) % count_ * width), width,
                  rows.begin() + static_cast<std::ptrdiff_t>(i * width));
    }
    auto position = static_cast<int64_t>(begin);
    std::vector<TensorPtr> inputs = {
        from_blob(rows.data(), {1, static_cast<SizesType>(count), static_cast<SizesType>(width)},
                  ScalarType::Float),
        from_blob(&position, {1}, ScalarType::Long)};
    std::vector<int64_t> seen;  // for each row, the first and last row of its image, to which it attends
    for (size_t i = begin; i < end && in_blocks_; ++i) {
      const auto own = static_cast<int64_t>(i);
      const int64_t first = tokens[i] < vocab_size_ ? own : own - static_cast<int64_t>(row_of(tokens[i]));
      seen.push_back(std::max<int64_t>(first, 0));
      seen.push_back(tokens[i] < vocab_size_ ? own : first + static_cast<int64_t>(count_) - 1);
    }
    if (in_blocks_)
      inputs.push_back(from_blob(seen.data(), {static_cast<SizesType>(count), 2}, ScalarType::Long));
    return logits_of(execute(method_, inputs));
  }

  /// Does not split an image with bidirectional attention.
  size_t max_step_end(const std::vector<uint64_t>& tokens, size_t begin) const override {
    const size_t end = Decoder::max_step_end(tokens, begin);
    if (!in_blocks_ || end == tokens.size() || tokens[end] < vocab_size_) return end;
    const auto row = static_cast<size_t>(row_of(tokens[end]));
    return row > 0 && row < end && end - row > begin ? end - row : end;
  }
  Result<std::unique_ptr<Decoder>> on(std::shared_ptr<Module> module) const override {
    Result<std::unique_ptr<Decoder>> made = make(std::move(module), max_context_);
    if (made.ok()) static_cast<ImageDecoder*>(made->get())->known_ = known_;
    return made;
  }

 private:
  using MediaDecoder::MediaDecoder;

  Error read_image_tokens() {
    int64_t image = -1, placeholder = -1;
    TORCHETTE_TRY(metadata_value(*module_, "image_token_id", -1, &image));
    TORCHETTE_TRY(metadata_value(*module_, "image_placeholder", image, &placeholder));
    if (image >= 0) token_ = static_cast<uint64_t>(image);
    if (placeholder >= 0) placeholder_ = static_cast<uint64_t>(placeholder);
    const Result<std::vector<double>> around = metadata(*module_, "image_prompt");
    if (!around.ok()) return around.error();
    for (double token : *around) image_prompt_.push_back(token < 0 ? 0 : static_cast<uint64_t>(token));
    if (image_prompt_.empty()) image_prompt_.push_back(token_);
    return Error::Ok;
  }

  Result<uint64_t> keep_image(const Image& image, size_t index) {
    const std::string name = "image " + std::to_string(index);
    TORCHETTE_CHECK(image.has_valid_size(), InvalidArgument,
                    "%s: the data does not fit its size of %d x %d with %d channels", name.c_str(),
                    static_cast<int>(image.width()), static_cast<int>(image.height()),
                    static_cast<int>(image.channels()));
    TORCHETTE_CHECK(image.is_float() || image.channels() == 3, InvalidArgument,
                    "%s: an image of bytes must have 3 channels, not %d", name.c_str(),
                    static_cast<int>(image.channels()));
    const auto height = static_cast<size_t>(sizes_[2]), width = static_cast<size_t>(sizes_[3]);
    Result<Media> media =
        image.is_uint8() ? encoder_input(pixels(image, height, width, mean_, std_), {3, sizes_[2], sizes_[3]},
                                         name.c_str())
                         : encoder_input(image.get_float_data(),
                                         {image.channels(), image.height(), image.width()}, name.c_str());
    if (!media.ok()) return media.error();
    return keep(std::move(*media));
  }

  /// Replaces placeholders by the image's tokens and the surrounding tokens of the model's training, unless
  /// the prompt contains them.
  std::vector<uint64_t> wrapped(std::vector<uint64_t> tokens) const {
    if (std::search(tokens.begin(), tokens.end(), image_prompt_.begin(), image_prompt_.end()) != tokens.end())
      return tokens;
    std::vector<uint64_t> all;
    for (uint64_t token : tokens) {
      if (token == placeholder_)
        all.insert(all.end(), image_prompt_.begin(), image_prompt_.end());
      else
        all.push_back(token);
    }
    return all;
  }

  uint64_t row_of(uint64_t token) const { return (token - vocab_size_) & ((1u << kRowBits) - 1); }

  std::vector<double> mean_ = {0.5, 0.5, 0.5}, std_ = {0.5, 0.5, 0.5};
  uint64_t token_ = UINT64_MAX;         // the token of an image in the model
  uint64_t placeholder_ = UINT64_MAX;   // the token of an image in chat templates
  std::vector<uint64_t> image_prompt_;  // the image tokens with the surrounding tokens
  size_t count_ = 0;                    // rows per image
  bool in_blocks_ = false;              // the rows of an image attend to each other
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_media_decoder(std::shared_ptr<Module> module,
                                                    const std::unordered_set<std::string>& methods,
                                                    size_t max_context) {
  if (methods.count("vision_encoder") != 0) return ImageDecoder::make(std::move(module), max_context);
  TORCHETTE_CHECK(methods.count("encoder") != 0, NotSupported,
                  "a program with text_decoder needs vision_encoder or encoder");
  return CrossDecoder::make(std::move(module), max_context);
}

}  // namespace torchette::extension::llm
