// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/schema_json.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "torchette/llm/text/unicode.h"

namespace torchette::extension::llm::schema {

using Kind = Json::Kind;

std::string format(const char* form, ...) {
  char text[64];
  std::va_list values;
  va_start(values, form);
  std::vsnprintf(text, sizeof(text), form, values);
  va_end(values);
  return text;
}

bool is_bool(const Json& json) { return json.is(Kind::True) || json.is(Kind::False); }

bool is_integer(const Json& json) {
  return json.is(Kind::Number) && json.text.find_first_of(".eE") == std::string::npos;
}

namespace {

/// The fewest digits that read back as the same number.
std::string dump_number(const Json& json) {
  if (is_integer(json)) return json.text == "-0" ? "0" : json.text;
  if (!std::isfinite(json.number)) return json.number < 0 ? "-Infinity" : "Infinity";
  int digits = 0;
  std::string text;
  do {
    text = format("%.*e", digits++, json.number);
  } while (digits < 18 && std::strtod(text.c_str(), nullptr) != json.number);
  const size_t at = text.find('e');
  const int exponent = std::atoi(text.c_str() + at + 1);
  if (exponent >= -4 && exponent < 16) {
    text = format("%.*f", std::max(digits - 1 - exponent, 1), json.number);
    return text;
  }
  std::string mantissa = text.substr(0, at);
  return mantissa + "e" + (exponent < 0 ? "-" : "+") + format("%02d", std::abs(exponent));
}

}  // namespace

std::string dump_string(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  const auto unit = [&](uint32_t code) { out += format("\\u%04x", code); };
  const Result<Text> points = to_text(text);
  for (char32_t c : points.ok() ? *points : Text()) {
    constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    const size_t known = c < 128 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos)
      (out += '\\') += kTo[known];
    else if (c < ' ' || (ensure_ascii && c > 126 && c < 0x10000))
      unit(c);
    else if (ensure_ascii && c > 126)
      unit(0xD800 + ((c - 0x10000) >> 10)), unit(0xDC00 + ((c - 0x10000) & 0x3FF));
    else
      append_utf8(c, &out);
  }
  return out + "\"";
}

std::string dump(const Json& json) {
  return write_json(json, {dump_number, [](std::string_view text) { return dump_string(text); }, ", ", ": "});
}

bool is_equal(const Json& a, const Json& b) {
  const auto number = [](const Json& json, double* out) {
    *out = is_bool(json) ? json.is(Kind::True) : json.number;
    return is_bool(json) || json.is(Kind::Number);
  };
  double left, right;
  if (number(a, &left)) {
    if (!number(b, &right)) return false;
    return is_integer(a) && is_integer(b) ? dump_number(a) == dump_number(b) : left == right;
  }
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  if (a.is_string()) return a.text == b.text;
  for (size_t i = 0; i < a.items.size(); ++i) {
    const Json* other = a.is(Kind::Array) ? &b.items[i] : nullptr;
    for (size_t k = 0; k < b.keys.size() && a.is(Kind::Object); ++k)
      if (b.keys[k] == a.keys[i]) other = &b.items[k];
    if (other == nullptr || !is_equal(a.items[i], *other)) return false;
  }
  return true;
}

void merge_duplicate_keys(Json* json) {
  if (json->is(Kind::Object)) {
    std::map<std::string, size_t> positions;
    size_t size = 0;
    for (size_t i = 0; i < json->items.size(); ++i) {
      const auto [at, is_new] = positions.try_emplace(json->keys[i], size);
      if (at->second != i) {
        json->items[at->second] = std::move(json->items[i]);
        json->keys[at->second] = at->first;
      }
      size += is_new;
    }
    json->items.resize(size);
    json->keys.resize(size);
  }
  for (Json& item : json->items) merge_duplicate_keys(&item);
}

const Json* find(const Json& object, std::string_view key) {
  for (size_t i = 0; i < object.keys.size(); ++i)
    if (object.keys[i] == key) return &object.items[i];
  return nullptr;
}

void set(Json* object, const std::string& key, Json value) {
  if (const Json* const known = find(*object, key)) {
    *const_cast<Json*>(known) = std::move(value);
    return;
  }
  object->keys.push_back(key);
  object->items.push_back(std::move(value));
}

Json only_keys(const Json& object, bool (*keeps)(std::string_view)) {
  Json kept;
  kept.kind = Kind::Object;
  for (size_t i = 0; i < object.items.size(); ++i)
    if (keeps(object.keys[i])) set(&kept, object.keys[i], object.items[i]);
  return kept;
}

Json empty(Kind kind) {
  Json json;
  json.kind = kind;
  return json;
}

}  // namespace torchette::extension::llm::schema
