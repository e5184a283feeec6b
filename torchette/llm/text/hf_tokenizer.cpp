// SPDX-License-Identifier: BSD-3-Clause
// Reads the parts of a tokenizer.json into a pipeline.
#include "torchette/llm/text/pipeline.h"
#include "torchette/llm/text/tokenizer.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

/// Appends the token ids of a special token of a template.
Error append_special(const Json& tokens, std::string_view name, std::vector<uint64_t>* out) {
  const Json& ids = tokens[name]["ids"];
  TORCHETTE_CHECK(!ids.items.empty(), InvalidExternalData, "the template's special token %s has no ids",
                  std::string(name).c_str());
  for (const Json& id : ids.items) {
    TORCHETTE_CHECK(id.index() >= 0, InvalidExternalData, "the template's special token %s has an invalid id",
                    std::string(name).c_str());
    out->push_back(static_cast<uint64_t>(id.index()));
  }
  return Error::Ok;
}

/// Reads the special tokens before and after a text. The tokens of a later processor enclose those of an
/// earlier one.
Error add_processor(const Json& json, Pipeline* out) {
  const std::string_view type = json.string("type");
  std::vector<uint64_t> before, behind;
  if (json.is(Json::Kind::Null) || type == "ByteLevel") return Error::Ok;  // affects only offsets
  if (type == "Sequence") {
    for (const Json& member : json["processors"].items) TORCHETTE_TRY(add_processor(member, out));
    return Error::Ok;
  }
  if (type == "TemplateProcessing") {
    bool passed = false;
    for (const Json& part : json["single"].items) {
      const Json& special = part["SpecialToken"];
      if (special.is(Json::Kind::Object)) {
        TORCHETTE_TRY(
            append_special(json["special_tokens"], special.string("id"), passed ? &behind : &before));
        continue;
      }
      TORCHETTE_CHECK(part["Sequence"].string("id") == "A" && !passed, NotSupported,
                      "a template must consist of one text and special tokens");
      passed = true;
    }
    TORCHETTE_CHECK(passed, NotSupported, "a template does not contain the text");
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const Json &first = json["cls"], &last = json["sep"];
    TORCHETTE_CHECK(first.items.size() == 2 && last.items.size() == 2 && first.items[1].index() >= 0 &&
                        last.items[1].index() >= 0,
                    InvalidExternalData, "%s needs cls and sep", std::string(type).c_str());
    before.push_back(static_cast<uint64_t>(first.items[1].index()));
    behind.push_back(static_cast<uint64_t>(last.items[1].index()));
  } else {
    TORCHETTE_LOG(Error, "the tokenizer's post-processor %s is not supported", std::string(type).c_str());
    return Error::NotSupported;
  }
  out->before.insert(out->before.begin(), before.begin(), before.end());
  out->behind.insert(out->behind.end(), behind.begin(), behind.end());
  return Error::Ok;
}

Error add_tokens(const Json& json, Pipeline* out) {
  for (const Json& entry : json.items) {
    Result<Text> content = to_text(entry.string("content"));
    if (!content.ok()) return content.error();
    const int64_t id = entry["id"].index();
    TORCHETTE_CHECK(id >= 0, InvalidExternalData, "the added token %s has no id", to_utf8(*content).c_str());
    AddedToken token;
    token.content = std::move(*content);
    token.id = static_cast<uint64_t>(id);
    token.single_word = entry.flag("single_word");
    token.lstrip = entry.flag("lstrip");
    token.rstrip = entry.flag("rstrip");
    token.special = entry.flag("special");
    TORCHETTE_TRY(out->add(std::move(token), entry.flag("normalized", !entry.flag("special"))));
  }
  return Error::Ok;
}

/// Creates the parts of a pipeline from a tokenizer.json.
Error add_parts(const Json& json, Pipeline* out) {
  Result<std::unique_ptr<Model>> model = make_model(json["model"]);
  if (!model.ok()) return model.error();
  out->model = std::move(*model);
  TORCHETTE_TRY(add_normalizers(json["normalizer"], &out->normalizers));
  TORCHETTE_TRY(add_pre_tokenizers(json["pre_tokenizer"], &out->pre_tokenizers));
  const Json& decoder = json["decoder"];
  out->joins_with_spaces = decoder.is(Json::Kind::Null);
  if (!out->joins_with_spaces) TORCHETTE_TRY(add_decoders(decoder, &out->decoders));
  TORCHETTE_TRY(add_processor(json["post_processor"], out));
  TORCHETTE_TRY(add_tokens(json["added_tokens"], out));
  if (!out->before.empty()) out->bos = out->before.front();
  if (!out->behind.empty()) out->eos = out->behind.back();
  return Error::Ok;
}

/// Adds the control tokens of a SentencePiece model to the tokens that text can produce, as transformers
/// does: chat templates write them.
Error add_control_tokens(Pipeline* out) {
  const std::vector<bool> special = out->special;
  for (uint64_t id = 0; id < special.size(); ++id) {
    if (!special[id]) continue;
    AddedToken token;
    token.content = *to_text(out->model->vocabulary.piece(id));
    token.id = id;
    token.special = true;
    if (!token.content.empty()) TORCHETTE_TRY(out->add(std::move(token), false));
  }
  return Error::Ok;
}

/// The token that begins or ends a text, and its fields in a tokenizer_config.json.
struct EndTokenFields {
  const char *token, *flag;   // fields: the token, and whether each text has it
  const char* default_token;  // the token if the field is absent
  bool is_added;              // the flag if the field is absent
};

void set_end(const Json& json, const EndTokenFields& name, const Pipeline& pipeline, uint64_t* token,
             std::vector<uint64_t>* tokens) {
  const std::string piece(json.string(name.token, name.default_token));
  const auto added = pipeline.added_ids.find(piece);
  const int64_t id = pipeline.model->vocabulary.find(piece);
  if (added != pipeline.added_ids.end())
    *token = added->second;
  else if (id >= 0 && !piece.empty())
    *token = static_cast<uint64_t>(id);
  tokens->clear();
  if (json.flag(name.flag, name.is_added) && *token != Pipeline::kNone) tokens->push_back(*token);
}

/// Reads a model of the type "File": a SentencePiece or tiktoken file, with fields of a
/// tokenizer_config.json.
Error add_file(const Json& json, Pipeline* out) {
  const Json& model = json["model"];
  const Result<std::string> file = from_base64(model.string("bytes"));
  if (!file.ok()) return file.error();
  const bool is_tiktoken = !is_sentencepiece(*file);
  if (!is_tiktoken) {
    TORCHETTE_TRY(read_sentencepiece(*file, model["vocab"].is(Json::Kind::Null) ? Json() : model, out));
    TORCHETTE_TRY(add_control_tokens(out));
  } else {
    TORCHETTE_TRY(read_tiktoken(*file, Tiktoken::default_pattern(), out));
    if (json["added_tokens"].items.empty()) TORCHETTE_TRY(add_llama3_tokens(out));
  }
  TORCHETTE_TRY(add_tokens(json["added_tokens"], out));
  const EndTokenFields bos{"bos_token", "add_bos_token", is_tiktoken ? "<|begin_of_text|>" : "",
                           is_tiktoken || !out->before.empty()};
  const EndTokenFields eos{"eos_token", "add_eos_token", is_tiktoken ? "<|end_of_text|>" : "",
                           !out->behind.empty()};
  set_end(json, bos, *out, &out->bos, &out->before);
  set_end(json, eos, *out, &out->eos, &out->behind);
  return Error::Ok;
}

}  // namespace

Error HFTokenizer::load_bytes(std::string_view bytes) {
  const Result<Json> json = Json::parse(bytes);
  if (!json.ok()) return json.error();
  auto made = std::make_shared<Pipeline>();
  const bool is_file = (*json)["model"].string("type") == "File";
  TORCHETTE_TRY(is_file ? add_file(*json, made.get()) : add_parts(*json, made.get()));
  set_pipeline(std::move(made));
  return Error::Ok;
}

}  // namespace torchette::extension::llm
