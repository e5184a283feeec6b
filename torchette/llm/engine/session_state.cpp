// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/session_state.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/text/json.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr char kMagic[] = "torchette session 1\n";
constexpr size_t kMagicSize = sizeof(kMagic) - 1, kStart = kMagicSize + 8;

/// Returns the dtype name of numpy.
const char* name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Double:
      return "float64";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Bool:
      return "bool";
    default:
      return "unknown";
  }
}

/// The number of rows and of bytes of a part that `count` tokens use.
struct StoredSize {
  int64_t first;
  size_t nbytes;
};
StoredSize stored_size(const Decoder::Part& part, size_t count, size_t context) {
  if (part.is_recurrent() || part.sizes.empty() || part.sizes[0] != static_cast<int64_t>(context))
    return {part.sizes.empty() ? 0 : part.sizes[0], part.nbytes};
  return {static_cast<int64_t>(count), part.nbytes / context * count};
}

Error invalid_state(const char* why) {
  TORCHETTE_LOG(Error, "not a state of this model: %s", why);
  return Error::InvalidExternalData;
}

}  // namespace

std::vector<uint8_t> write_state(const std::string& model, const std::vector<uint64_t>& tokens,
                                 const std::vector<Decoder::Part>& parts, size_t context) {
  std::string head = "{\"model\": " + json_string(model) + ", \"tokens\": [";
  for (size_t i = 0; i < tokens.size(); ++i) head += (i == 0 ? "" : ", ") + std::to_string(tokens[i]);
  head += "], \"state\": [";
  size_t total = 0;
  for (const Decoder::Part& part : parts) {
    const StoredSize stored = stored_size(part, tokens.size(), context);
    head +=
        (head.back() == '[' ? "[" : ", [") + json_string(part.name) + ", \"" + name_of(part.type) + "\", [";
    for (size_t i = 0; i < part.sizes.size(); ++i)
      head += (i == 0 ? "" : ", ") + std::to_string(i == 0 ? stored.first : part.sizes[i]);
    head += "]]";
    total += stored.nbytes;
  }
  head += "]}";
  std::vector<uint8_t> out;
  out.reserve(kStart + head.size() + total);
  const auto add = [&](const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    if (size > 0) out.insert(out.end(), bytes, bytes + size);
  };
  add(kMagic, kMagicSize);
  for (int shift = 0; shift < 64; shift += 8)
    out.push_back(static_cast<uint8_t>(uint64_t{head.size()} >> shift));
  add(head.data(), head.size());
  for (const Decoder::Part& part : parts) add(part.bytes, stored_size(part, tokens.size(), context).nbytes);
  return out;
}

Result<std::vector<uint64_t>> read_state(Span<const uint8_t> bytes, const std::string& model,
                                         const std::vector<Decoder::Part>& parts, size_t context,
                                         uint64_t vocab_size, bool has_media) {
  if (bytes.size() < kStart || std::memcmp(bytes.data(), kMagic, kMagicSize) != 0)
    return invalid_state("it has no session header");
  uint64_t size = 0;
  for (int i = 0; i < 8; ++i) size |= uint64_t{bytes[kMagicSize + static_cast<size_t>(i)]} << (8 * i);
  if (size > bytes.size() - kStart) return invalid_state("its header exceeds the file");
  const Result<Json> head =
      Json::parse({reinterpret_cast<const char*>(bytes.data()) + kStart, static_cast<size_t>(size)});
  if (!head.ok()) return head.error();
  if (head->string("model") != model) return invalid_state("it belongs to another model");
  const Json &given = (*head)["tokens"], &state = (*head)["state"];
  if (!given.is(Json::Kind::Array) || !state.is(Json::Kind::Array))
    return invalid_state("its header has no tokens or no state");
  std::vector<uint64_t> tokens;
  for (const Json& one : given.items) {
    const bool is_valid_integer =
        one.is(Json::Kind::Number) && one.text.find_first_not_of("0123456789") == std::string::npos;
    errno = 0;
    const uint64_t token = is_valid_integer ? std::strtoull(one.text.c_str(), nullptr, 10) : UINT64_MAX;
    if (errno != 0 || token >= (has_media ? uint64_t{1} << 62 : vocab_size))
      return invalid_state("it has an invalid token");
    tokens.push_back(token);
  }
  if (tokens.size() > context) return invalid_state("it has more tokens than the context");
  if (state.items.size() != parts.size()) return invalid_state("its state has another number of tensors");
  uint64_t at = kStart + size;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& entry = state.items[i];
    const StoredSize stored = stored_size(parts[i], tokens.size(), context);
    bool fits = entry.items.size() == 3 && entry.items[0].is_string() &&
                entry.items[0].text == parts[i].name && entry.items[1].is_string() &&
                entry.items[1].text == name_of(parts[i].type) && entry.items[2].is(Json::Kind::Array) &&
                entry.items[2].items.size() == parts[i].sizes.size();
    for (size_t k = 0; k < parts[i].sizes.size() && fits; ++k)
      fits = entry.items[2].items[k].index() == (k == 0 ? stored.first : parts[i].sizes[k]);
    if (!fits) return invalid_state("a tensor of its state has another name, type or shape");
    if (stored.nbytes > bytes.size() - at) return invalid_state("it is truncated");
    at += stored.nbytes;
  }
  if (at != bytes.size()) return invalid_state("it has bytes after the last tensor");
  at = kStart + size;
  for (const Decoder::Part& part : parts) {
    const size_t nbytes = stored_size(part, tokens.size(), context).nbytes;
    if (nbytes > 0) std::memcpy(part.bytes, bytes.data() + at, nbytes);
    at += nbytes;
  }
  return tokens;
}

void copy_state(const std::vector<Decoder::Part>& from, const std::vector<Decoder::Part>& to, size_t count,
                size_t context) {
  for (size_t i = 0; i < from.size(); ++i) {
    const size_t nbytes = stored_size(from[i], count, context).nbytes;
    if (nbytes > 0) std::memcpy(to[i].bytes, from[i].bytes, nbytes);
  }
}

Error write_file(const std::string& path, const std::vector<uint8_t>& bytes) {
  const std::string fresh = path + ".new";
  std::FILE* const file = std::fopen(fresh.c_str(), "wb");
  TORCHETTE_CHECK(file != nullptr, AccessFailed, "%s cannot be written", fresh.c_str());
  bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  written = std::fclose(file) == 0 && written;
  TORCHETTE_CHECK(written && std::rename(fresh.c_str(), path.c_str()) == 0, AccessFailed,
                  "%s cannot be written", path.c_str());
  return Error::Ok;
}

Result<std::vector<uint8_t>> read_file(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  TORCHETTE_CHECK(file != nullptr, AccessFailed, "%s cannot be opened", path.c_str());
  std::vector<uint8_t> bytes;
  for (size_t read = 1; read > 0;) {
    const size_t size = bytes.size();
    bytes.resize(size + (size_t{1} << 16) + size / 2);
    read = std::fread(bytes.data() + size, 1, bytes.size() - size, file);
    bytes.resize(size + read);
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  TORCHETTE_CHECK(!failed, AccessFailed, "%s cannot be read", path.c_str());
  return bytes;
}

}  // namespace torchette::extension::llm
