// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/schema_conjunction.h"

#include <algorithm>

#include "torchette/llm/grammar/decimal.h"
#include "torchette/llm/grammar/schema_json.h"

namespace torchette::extension::llm::schema {
namespace {

using Kind = Json::Kind;

Json list_of(std::vector<Json> items) {
  Json list = empty(Kind::Array);
  list.items = std::move(items);
  return list;
}

/// Both schemas, not merged yet.
Json all_of(const Json& a, const Json& b) {
  if (a.is(Kind::False) || b.is(Kind::True)) return a;
  if (b.is(Kind::False) || a.is(Kind::True)) return b;
  Json schema = empty(Kind::Object);
  set(&schema, "allOf", list_of({a, b}));
  return schema;
}

Json concatenated(const Json& a, const Json& b) {
  Json list = a;
  list.items.insert(list.items.end(), b.items.begin(), b.items.end());
  return list;
}

/// Returns the values of `a` that are in `b`. An integer is also a number.
Json intersection(const Json& a, const Json& b, bool of_types) {
  const Json first = a.is(Kind::Array) ? a : list_of({a}), second = b.is(Kind::Array) ? b : list_of({b});
  const auto has = [](const Json& list, const Json& value) {
    return std::any_of(list.items.begin(), list.items.end(),
                       [&](const Json& one) { return is_equal(one, value); });
  };
  Json number, found = empty(Kind::Array);
  number.kind = Kind::String;
  number.text = "number";
  for (const Json& value : first.items)
    if (has(second, value) || (of_types && value.text == "integer" && has(second, number)))
      found.items.push_back(value);
  if (of_types && has(first, number))
    for (const Json& value : second.items)
      if (value.text == "integer" && !has(first, value)) found.items.push_back(value);
  return found;
}

/// The members of one object schema's properties, each also under the other schema's additionalProperties.
void restrict_properties(const Json& from, const Json& other, Json* properties) {
  const Json *own = find(from, "properties"), *theirs = find(other, "properties");
  const Json* const rest = find(other, "additionalProperties");
  for (size_t i = 0; own != nullptr && i < own->items.size(); ++i) {
    const std::string& name = own->keys[i];
    if (const Json* both = theirs == nullptr ? nullptr : find(*theirs, name))
      set(properties, name, is_equal(own->items[i], *both) ? *both : all_of(own->items[i], *both));
    else
      set(properties, name, rest == nullptr ? own->items[i] : all_of(own->items[i], *rest));
  }
}

/// Returns the value of a keyword that two schemas have with different values, or nothing if they cannot be
/// merged.
std::optional<Json> combined(const std::string& key, const Json& a, const Json& b) {
  const bool is_lower =
      key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems";
  const bool is_upper =
      key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems";
  if (is_lower || is_upper) {
    const auto left = a.is(Kind::Number) ? integer_of(a.text, 10'000) : std::nullopt;
    const auto right = b.is(Kind::Number) ? integer_of(b.text, 10'000) : std::nullopt;
    if (!left || !right) return std::nullopt;
    return (compare(*left, *right) < 0) == is_lower ? b : a;
  }
  if (key == "items" || key == "additionalProperties") return all_of(a, b);
  if ((key == "required" || key == "allOf") && a.is(Kind::Array) && b.is(Kind::Array))
    return concatenated(a, b);
  if (key == "type" || (key == "enum" && a.is(Kind::Array) && b.is(Kind::Array)))
    return intersection(a, b, key == "type");
  return std::nullopt;
}

}  // namespace

bool is_annotation(std::string_view key) {
  constexpr std::string_view kAnnotations[] = {"title",
                                               "description",
                                               "default",
                                               "examples",
                                               "deprecated",
                                               "readOnly",
                                               "writeOnly",
                                               "$schema",
                                               "$id",
                                               "$comment",
                                               "$defs",
                                               "definitions",
                                               "$anchor",
                                               "$dynamicAnchor",
                                               "$recursiveAnchor",
                                               "$vocabulary",
                                               "discriminator",
                                               "contentEncoding",
                                               "contentMediaType",
                                               "strict"};
  return std::find(std::begin(kAnnotations), std::end(kAnnotations), key) != std::end(kAnnotations);
}

Json constraints_of(const Json& schema) {
  return only_keys(schema, [](std::string_view key) { return !is_annotation(key); });
}

std::optional<Json> conjunction(const Json& a, const Json& b, std::string* reason) {
  if (a.is(Kind::True) || b.is(Kind::False)) return b;
  if (b.is(Kind::True) || a.is(Kind::False)) return a;
  if (!a.is(Kind::Object) || !b.is(Kind::Object)) {
    *reason = dump(a.is(Kind::Object) ? b : a) + " is not a schema; a schema is an object, true or false";
    return std::nullopt;
  }
  const auto is_list_of_items = [](const Json& schema) { return find(schema, "prefixItems") != nullptr; };
  if ((is_list_of_items(a) && find(b, "items") != nullptr) ||
      (is_list_of_items(b) && find(a, "items") != nullptr)) {
    *reason = "a grammar cannot express prefixItems of one part and items of another part";
    return std::nullopt;
  }
  Json merged = constraints_of(a);
  const Json added = constraints_of(b);
  for (size_t i = 0; i < added.items.size(); ++i) {
    const std::string& key = added.keys[i];
    const Json& value = added.items[i];
    const Json* const known = find(merged, key);
    if (known == nullptr) {
      set(&merged, key, value);
    } else if (key == "$ref" && !is_equal(*known, value)) {
      Json reference = empty(Kind::Object);
      set(&reference, key, value);
      const Json* const parts = find(merged, "allOf");
      set(&merged, "allOf",
          parts == nullptr ? list_of({reference}) : concatenated(*parts, list_of({reference})));
    } else if (key == "const" && !is_equal(*known, value)) {
      return empty(Kind::False);
    } else if (key != "properties" && !is_equal(*known, value)) {
      std::optional<Json> both = combined(key, *known, value);
      if (!both) {
        *reason = "a grammar cannot express two values of " + key;
        return std::nullopt;
      }
      if ((key == "type" || key == "enum") && both->items.empty()) return empty(Kind::False);
      set(&merged, key, std::move(*both));
    }
  }
  const auto fits = [](const Json* properties) {
    return properties == nullptr || properties->is(Kind::Object);
  };
  if (!fits(find(a, "properties")) || !fits(find(b, "properties"))) {
    *reason = "properties must be an object";
    return std::nullopt;
  }
  if (find(merged, "properties") != nullptr) {
    Json properties = empty(Kind::Object);
    restrict_properties(a, b, &properties);
    Json others = empty(Kind::Object);
    restrict_properties(b, a, &others);
    for (size_t i = 0; i < others.items.size(); ++i)
      if (find(properties, others.keys[i]) == nullptr) set(&properties, others.keys[i], others.items[i]);
    set(&merged, "properties", std::move(properties));
  }
  return merged;
}

}  // namespace torchette::extension::llm::schema
