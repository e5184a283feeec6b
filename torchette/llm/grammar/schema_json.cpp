// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/schema_json.h"

#include <cstdarg>
#include <cstdio>
#include <map>

#include "torchette/llm/grammar/decimal.h"

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

bool is_integer(const Json& json) { return json.is(Kind::Number) && is_integer(json.text); }

std::string dump(const Json& json) {
  return write_json(json, {[](const Json& number) { return number.text; },
                           [](std::string_view text) { return json_string(text); }, ", ", ": "});
}

bool is_equal(const Json& a, const Json& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  if (a.is(Kind::Number)) return normal_form(a.text) == normal_form(b.text);
  if (a.is_string()) return a.text == b.text;
  for (size_t i = 0; i < a.items.size(); ++i) {
    const Json* other = a.is(Kind::Array) ? &b.items[i] : find(b, a.keys[i]);
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
