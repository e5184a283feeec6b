// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/schema.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "torchette/llm/grammar/decimal.h"
#include "torchette/llm/grammar/schema_conjunction.h"
#include "torchette/llm/grammar/schema_gbnf.h"
#include "torchette/llm/grammar/schema_json.h"
#include "torchette/llm/grammar/schema_pattern.h"
#include "torchette/llm/grammar/schema_references.h"
#include "torchette/llm/text/json.h"
#include "torchette/llm/text/unicode.h"
#include "torchette/runtime/platform.h"

namespace torchette::extension::llm {
namespace schema {
namespace {

using Kind = Json::Kind;
using Words = std::initializer_list<std::string_view>;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxRules = 20000;
// Digits of an integer without a bound; more only by a bound, since a model may continue without end. The
// second value is limited by the depth of groups in GBNF.
constexpr size_t kFreeDigits = 15, kMaxDigits = 80;
constexpr char kBase[] = R"(
ws ::= (" " | "\n" " "{0,16})?
char ::= [^"\\\x00-\x1f\x7f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex hex hex | [dD] ([0-7] | [89abAB] hex hex "\\u" [dD] [c-fC-F]) hex hex))
hex ::= [0-9a-fA-F]
string ::= "\"" char* "\""
integer ::= "-"? ("0" | [1-9] [0-9]{0,14})
number ::= integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9] [0-9]?)?
boolean ::= "true" | "false"
null ::= "null"
object ::= "{" ws (string ws ":" ws value ws ("," ws string ws ":" ws value ws)*)? "}"
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
value ::= object | array | string | number | boolean | null
)";

struct Type {
  std::string_view name;
  std::string_view known[4];  // keywords that the grammar expresses

  bool knows(std::string_view key) const {
    return !key.empty() && std::find(std::begin(known), std::end(known), key) != std::end(known);
  }
};
constexpr Type kTypes[] = {{"object", {"properties", "required", "additionalProperties"}},
                           {"array", {"items", "prefixItems", "minItems", "maxItems"}},
                           {"string", {"minLength", "maxLength", "pattern", "format"}},
                           {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
                           {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
                           {"boolean", {}},
                           {"null", {}}};
const Type* type_of(std::string_view name) {
  for (const Type& one : kTypes)
    if (one.name == name) return &one;
  return nullptr;
}
template <typename List>
bool has(const List& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}
/// Keywords that combine schemas or list values.
bool is_structural(std::string_view key) {
  return has(Words{"$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type"}, key);
}

/// The regular expression of a format; empty if the format is unknown.
std::string format_pattern(std::string_view name) {
  const std::string day = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])", hex = "[0-9a-f]";
  const std::string time =
      R"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))";
  if (name == "date") return day;
  if (name == "time") return time;
  if (name == "date-time") return day + "T" + time;
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])",
                    label = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?";
  if (name == "duration")
    return "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H)?|T[0-9]{1,4}H([0-9]{1,4}M)?|T[0-9]{1,4}[MS])";
  if (name == "email")
    return R"([a-z0-9]([a-z0-9_+-]|\.[a-z0-9]){0,30}@)" + label + R"((\.)" + label + "){1,3}";
  if (name == "hostname") return label + R"((\.)" + label + "){0,3}";
  if (name == "ipv4") return byte + R"((\.)" + byte + "){3}";
  if (name == "ipv6") return "(" + hex + "{1,4}:){7}" + hex + "{1,4}";
  if (name == "uuid") return hex + "{8}-" + hex + "{4}-" + hex + "{4}-" + hex + "{4}-" + hex + "{12}";
  return {};
}

/// Converts schemas to rules. After the first error failed() is true and results are meaningless.
class Converter {
 public:
  explicit Converter(const Json& root) : root_(root) {}

  bool failed() const { return failed_; }
  const std::vector<std::string>& rules() const { return rules_; }

  /// An expression of a schema that is valid inside of a sequence.
  std::string convert(const Json& schema, const std::string& where, int depth) {
    if (failed_) return {};
    if (schema.is(Kind::True)) return "value";
    if (schema.is(Kind::False)) return refuse(where, "no value is valid");
    if (!schema.is(Kind::Object))
      return refuse(where, dump(schema) + " is not a schema; a schema is an object, true or false");
    if (depth > kMaxDepth)
      return refuse(where, "it is nested more than " + std::to_string(kMaxDepth) + " deep");
    const Json given = constraints_of(schema);
    if (given.items.empty()) return "value";
    for (const std::string& key : given.keys)
      if (!is_structural(key) && std::none_of(std::begin(kTypes), std::end(kTypes),
                                              [&](const Type& type) { return type.knows(key); }))
        return refuse(where, "a grammar cannot express " + key);
    if (find(given, "allOf") != nullptr || (find(given, "$ref") != nullptr && given.items.size() > 1))
      return all_of(given, where, depth);
    if (const Json* target = find(given, "$ref")) return reference(*target, where, depth);
    for (const char* key : {"anyOf", "oneOf"})
      if (find(given, key) != nullptr) return any_of(given, key, where, depth);
    if (find(given, "const") != nullptr || find(given, "enum") != nullptr) return listed(given, where);
    std::vector<std::string> kinds;
    if (const Json* definition = find(given, "type"); definition != nullptr) {
      if (!list_of_types(*definition, where + "/type", &kinds)) return {};
    } else {
      for (const char* kind : {"object", "array", "string", "number"})
        if (std::any_of(given.keys.begin(), given.keys.end(),
                        [&](const std::string& key) { return type_of(kind)->knows(key); }))
          kinds.emplace_back(kind);
      if (kinds.size() != 1) return refuse(where, "it needs a type next to " + join(given.keys, ", "));
    }
    std::vector<std::string> strange;
    for (const std::string& key : given.keys)
      if (key != "type" && std::none_of(kinds.begin(), kinds.end(),
                                        [&](const std::string& kind) { return type_of(kind)->knows(key); }))
        strange.push_back(key);
    if (!strange.empty())
      return refuse(where, *std::min_element(strange.begin(), strange.end()) + " of " + join(kinds, " or ") +
                               " has no effect; remove it, or correct the type");
    std::vector<std::string> expressions;
    for (const std::string& kind : kinds) expressions.push_back(typed(kind, given, where, depth));
    return any(expressions);
  }

 private:
  /// The end of a long location, which is more specific than its beginning: a log line has 255 bytes.
  static std::string shortened(const std::string& where) {
    constexpr size_t kSize = 80;
    if (where.size() <= kSize) return where;
    size_t begin = where.size() - kSize;
    while (begin < where.size() && (where[begin] & 0xC0) == 0x80) ++begin;  // inside of a character
    return "#..." + where.substr(begin);
  }
  std::string refuse(const std::string& where, const std::string& what) {
    if (!failed_) TORCHETTE_LOG(Error, "the schema at %s: %s", shortened(where).c_str(), what.c_str());
    failed_ = true;
    return {};
  }
  std::string rule(const std::string& text) {
    if (rules_.size() >= kMaxRules)
      return refuse("#", "it needs more than " + std::to_string(kMaxRules) + " rules");
    const std::string name = "r" + std::to_string(rules_.size());
    rules_.push_back(name + " ::= " + text);
    return name;
  }
  std::string any(const std::vector<std::string>& expressions) {
    return expressions.size() == 1 ? expressions[0] : rule(join(expressions, " | "));
  }
  bool only(const Json& given, Words keys, const std::string& where) {
    std::vector<std::string> strange;
    for (const std::string& key : given.keys)
      if (!has(keys, key)) strange.push_back(key);
    if (strange.empty()) return true;
    refuse(where, *std::min_element(strange.begin(), strange.end()) + " next to " +
                      std::string(*keys.begin()) + "; a grammar cannot express both");
    return false;
  }
  bool is_list(const Json& value, const std::string& where) {
    if (value.is(Kind::Array) && !value.items.empty()) return true;
    refuse(where, "it must be a list with at least one item");
    return false;
  }
  bool list_of_types(const Json& definition, const std::string& where, std::vector<std::string>* kinds) {
    if (!definition.is_string() && !is_list(definition, where)) return false;
    const std::vector<Json> one = {definition};
    for (const Json& kind : definition.is_string() ? one : definition.items) {
      if (!kind.is_string() || type_of(kind.text) == nullptr) {
        refuse(where.substr(0, where.rfind('/')),
               "unknown type " + (kind.is_string() ? kind.text : dump(kind)));
        return false;
      }
      kinds->push_back(kind.text);
    }
    return true;
  }

  std::string listed(const Json& given, const std::string& where) {
    if (!only(given, {"const", "enum", "type"}, where)) return {};
    const Json *constant = find(given, "const"), *list = find(given, "enum"), *type = find(given, "type");
    if (list != nullptr && !(constant != nullptr && list->is(Kind::Array)) &&
        !is_list(*list, where + "/enum"))
      return {};
    std::vector<std::string> kinds;
    if (type != nullptr && !list_of_types(*type, where + "/type", &kinds)) return {};
    std::vector<std::string> expressions;
    const std::vector<Json> one = {constant != nullptr ? *constant : Json()};
    for (const Json& value : constant != nullptr ? one : list->items) {
      const char* own = value.is(Kind::Object)   ? "object"
                        : value.is(Kind::Array)  ? "array"
                        : value.is(Kind::String) ? "string"
                        : is_bool(value)         ? "boolean"
                        : is_integer(value)      ? "integer"
                        : value.is(Kind::Number) ? "number"
                                                 : "null";
      const bool fits =
          type == nullptr || has(kinds, own) || (own == std::string_view("integer") && has(kinds, "number"));
      const bool is_listed =
          list == nullptr || std::any_of(list->items.begin(), list->items.end(),
                                         [&](const Json& item) { return is_equal(item, value); });
      if (fits && is_listed) expressions.push_back(quoted(dump(value)));
    }
    return expressions.empty() ? refuse(where, "no value is valid") : any(expressions);
  }

  std::string any_of(const Json& given, const char* key, const std::string& where, int depth) {
    const Json& branches = *find(given, key);
    const std::string place = where + "/" + key;
    if (!is_list(branches, place)) return {};
    Json siblings = empty(Kind::Object);
    for (size_t i = 0; i < given.items.size(); ++i)
      if (given.keys[i] != key) set(&siblings, given.keys[i], given.items[i]);
    std::vector<std::string> expressions;
    for (size_t i = 0; i < branches.items.size(); ++i) {
      const std::string branch_place = place + "/" + std::to_string(i);
      const std::optional<Json> branch = both(siblings, branches.items[i], branch_place);
      if (!branch) return {};
      if (branch->is(Kind::False)) continue;
      expressions.push_back(convert(*branch, branch_place, depth + 1));
      if (failed_) return {};
    }
    return expressions.empty() ? refuse(where, "no value is valid") : any(expressions);
  }
  std::optional<Json> both(const Json& siblings, const Json& schema, const std::string& where) {
    if (siblings.items.empty()) return schema;
    std::string reason;
    std::optional<Json> merged = conjunction(siblings, schema, &reason);
    if (!merged) refuse(where, reason);
    return merged;
  }

  const Json* target_of(const Json& reference, const std::string& where) {
    const Json* const found = reference.is_string() ? follow(root_, reference.text) : nullptr;
    if (found == nullptr)
      refuse(where, "$ref " + dump(reference) +
                        " leads to no part of the schema; it must be a JSON pointer such as #/$defs/x, "
                        "or an $id or $anchor of the schema");
    return found;
  }
  static const Json* find(const Json& object, std::string_view key) { return schema::find(object, key); }

  std::string reference(const Json& target, const std::string& where, int depth) {
    const Json* const found = target_of(target, where);
    return found == nullptr ? std::string() : named(target.text, *found, target.text, depth);
  }
  /// A rule for a schema, made once for each key: a recursive schema calls its own rule.
  std::string named(const std::string& key, const Json& schema, const std::string& where, int depth) {
    const auto [at, is_new] = references_.try_emplace(key, "d" + std::to_string(references_.size()));
    const std::string name = at->second;
    if (is_new) {
      const std::string expression = convert(schema, where, depth + 1);
      rules_.push_back(name + " ::= " + expression);
    }
    return name;
  }

  /// Converts the conjunction of `allOf`, `$ref` and the keywords next to them.
  std::string all_of(const Json& given, const std::string& where, int depth) {
    Json merged = empty(Kind::True);
    std::vector<Json> parts = {given};  // the next one is the last one
    for (int count = 0; !parts.empty(); ++count) {
      if (count > 10 * kMaxDepth)
        return refuse(where, "allOf or $ref refers to itself, or has more than 640 parts");
      const Json part = std::move(parts.back());
      parts.pop_back();
      const Json *list = find(part, "allOf"), *target = find(part, "$ref");
      if (list != nullptr && !is_list(*list, where + "/allOf")) return {};
      for (size_t i = list == nullptr ? 0 : list->items.size(); i-- > 0;) parts.push_back(list->items[i]);
      if (target != nullptr) {
        const bool is_alone =
            parts.empty() && merged.is(Kind::True) && constraints_of(part).items.size() == 1;
        if (is_alone) return reference(*target, where, depth);
        const Json* const found = target_of(*target, where);
        if (found == nullptr) return {};
        parts.push_back(*found);
      }
      const Json rest = part.is(Kind::Object)
                            ? only_keys(part,
                                        [](std::string_view key) {
                                          return !is_annotation(key) && key != "allOf" && key != "$ref";
                                        })
                            : part;
      std::string reason;
      std::optional<Json> both = conjunction(merged, rest, &reason);
      if (!both) return refuse(where, reason);
      merged = std::move(*both);
    }
    if (merged.is(Kind::False)) return refuse(where, "no value is valid");
    return named(dump(merged), merged, where, depth);
  }

  std::string typed(const std::string& kind, const Json& all, const std::string& where, int depth) {
    if (failed_) return {};
    Json given = empty(Kind::Object);
    for (size_t i = 0; i < all.items.size(); ++i)
      if (type_of(kind)->knows(all.keys[i])) set(&given, all.keys[i], all.items[i]);
    if (given.items.empty()) return kind;
    if (kind == "object") return object(given, where, depth);
    if (kind == "array") return array(given, where, depth);
    if (kind == "string") return string(given, where);
    return kind == "integer" ? integer(given, where) : number(given, where);
  }

  /// A count of the schema; -1 if it is absent. Null is an absent value without a default.
  int64_t count(const Json& given, const char* key, bool has_default, const std::string& where) {
    const Json* const value = find(given, key);
    if (value == nullptr || (value->is(Kind::Null) && !has_default)) return has_default ? 0 : -1;
    const int64_t number = is_integer(*value) ? value->index() : -1;
    if (number < 0 || number > 10000)
      refuse(where, std::string(key) + " must be an integer from 0 to 10000, got " + dump(*value));
    return number;
  }

  // --- Objects and arrays ---
  std::string object(const Json& given, const std::string& where, int depth) {
    const Json no_properties = empty(Kind::Object), no_names = empty(Kind::Array);
    const Json* const definition = find(given, "properties");
    const Json* const listed = find(given, "required");
    Json properties = definition == nullptr ? no_properties : *definition;
    const Json& required = listed == nullptr ? no_names : *listed;
    bool fits = properties.is(Kind::Object) && required.is(Kind::Array);
    for (const Json& name : required.items) fits = fits && name.is_string();
    if (!fits) return refuse(where, "properties must be an object and required a list of names");
    const Json* const others = find(given, "additionalProperties");
    const Json more =
        others != nullptr ? *others : empty(properties.items.empty() ? Kind::True : Kind::False);
    const std::vector<std::string> known = properties.keys;
    std::set<std::string_view> needed;
    for (const Json& name : required.items) {
      needed.insert(name.text);
      if (has(known, name.text)) continue;
      if (more.is(Kind::False))
        return refuse(where, name.text + " is required, but additionalProperties forbids it");
      set(&properties, name.text, more);
    }
    std::vector<std::string> pairs;
    const std::vector<std::string> named = properties.keys;
    for (size_t i = properties.items.size(); i-- > 0;) {
      if (!properties.items[i].is(Kind::False)) continue;
      if (needed.count(properties.keys[i]) != 0)
        return refuse(where, properties.keys[i] + " is required, but its schema is false");
      properties.items.erase(properties.items.begin() + static_cast<std::ptrdiff_t>(i));
      properties.keys.erase(properties.keys.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (size_t i = 0; i < properties.items.size(); ++i) {
      const std::string value =
          convert(properties.items[i], where + "/properties/" + properties.keys[i], depth + 1);
      if (failed_) return {};
      pairs.push_back(quoted(json_string(properties.keys[i])) + " ws \":\" ws " + value + " ws");
    }
    std::string rest = "\"\"", first = "\"\"";
    if (!more.is(Kind::False)) {
      const std::string value = convert(more, where + "/additionalProperties", depth + 1);
      const std::string pair = rule(other_key(named) + " ws \":\" ws " + value + " ws");
      rest = rule("(\",\" ws " + pair + ")*");
      first = rule("(" + pair + " (\",\" ws " + pair + ")*)?");
    }
    for (size_t i = pairs.size(); i-- > 0;) {  // `first`: no pair precedes; `rest`: a pair precedes
      const bool is_needed = needed.count(properties.keys[i]) != 0;
      first = rule(pairs[i] + " " + rest + (is_needed ? "" : " | " + first));
      rest = rule("\",\" ws " + pairs[i] + " " + rest + (is_needed ? "" : " | " + rest));
    }
    return "\"{\" ws " + first + " \"}\"";
  }

  /// A string other than these names. It has no escapes, which could write a name differently.
  std::string other_key(const std::vector<std::string>& names) {
    if (names.empty()) return "string";
    std::vector<Text> plain;
    for (const std::string& name : names) {
      const Result<Text> text = to_text(name);
      if (text.ok() && json_string(name).find('\\') == std::string::npos) plain.push_back(*text);
    }
    return "\"\\\"\" " + other_than(plain, 0) + " \"\\\"\"";
  }
  std::string other_than(const std::vector<Text>& names, int depth) {
    if (depth > 200)
      return refuse(
          "#", "a grammar cannot express additionalProperties next to a name of more than 200 characters");
    std::map<char32_t, std::vector<Text>> by_start;
    bool ends_here = false;
    for (const Text& name : names)
      if (name.empty())
        ends_here = true;
      else
        by_start[name[0]].push_back(name.substr(1));
    std::string starts;
    for (const auto& one : by_start) starts += class_member(one.first);
    std::vector<std::string> branches;
    if (!ends_here) branches.emplace_back("\"\"");
    const std::string other = std::string("[^") + kEscapedCharacters;
    branches.push_back(other + starts + "] " + other + "]*");
    for (const auto& [start, rest] : by_start) {
      if (failed_) return {};
      branches.push_back(quoted(to_utf8(Text(1, start))) + " " + other_than(rest, depth + 1));
    }
    return rule(join(branches, " | "));
  }

  std::string array(const Json& given, const std::string& where, int depth) {
    const int64_t least = count(given, "minItems", true, where);
    int64_t most = count(given, "maxItems", false, where);
    const Json* const prefix = find(given, "prefixItems");
    if (failed_) return {};
    if (prefix != nullptr && !prefix->is(Kind::Array)) return refuse(where, "prefixItems must be a list");
    std::vector<std::string> firsts;
    for (size_t i = 0; prefix != nullptr && i < prefix->items.size() && !failed_; ++i)
      firsts.push_back(convert(prefix->items[i], where + "/prefixItems/" + std::to_string(i), depth + 1));
    if (failed_) return {};
    const Json* const definition = find(given, "items");
    const Json items = definition == nullptr ? empty(Kind::True) : *definition;
    const auto size = static_cast<int64_t>(firsts.size());
    if (items.is(Kind::False)) most = most < 0 ? size : std::min(most, size);
    if (most >= 0) {
      firsts.resize(static_cast<size_t>(std::min(most, size)));
      if (least > most)
        return refuse(where, "minItems is " + std::to_string(least) + ", but at most " +
                                 std::to_string(most) + " items are valid");
    }
    const auto taken = static_cast<int64_t>(firsts.size());
    std::string tail;
    if (most < 0 || most > taken) {
      const std::string item = rule(convert(items, where + "/items", depth + 1) + " ws");
      const int64_t low = std::max<int64_t>(least - taken, 0), high = most - taken;
      if (taken > 0) {
        tail = "(\",\" ws " + item + "){" + std::to_string(low) + "," +
               (most < 0 ? "" : std::to_string(high)) + "}";
      } else {
        tail = item + " (\",\" ws " + item + "){" + std::to_string(std::max<int64_t>(low - 1, 0)) + "," +
               (most < 0 ? "" : std::to_string(high - 1)) + "}";
        if (low == 0) tail = "(" + tail + ")?";
      }
    }
    for (int64_t i = taken; i-- > 0;) {
      tail = (i > 0 ? "\",\" ws " : "") + firsts[static_cast<size_t>(i)] + " ws " + tail;
      tail = rule(i < least ? tail : tail + " | \"\"");
    }
    return "\"[\" ws " + tail + " \"]\"";
  }

  // --- Strings, integers and numbers ---
  std::string string(const Json& given, const std::string& where) {
    const int64_t least = count(given, "minLength", true, where),
                  most = count(given, "maxLength", false, where);
    if (failed_) return {};
    const Json *const definition = find(given, "pattern"), *const form = find(given, "format");
    std::optional<std::string> own;
    if (definition != nullptr && !definition->is(Kind::Null)) {
      if (definition->is_string()) own = definition->text;
    } else if (const std::string known =
                   form != nullptr && form->is_string() ? format_pattern(form->text) : "";
               !known.empty()) {
      own = "^" + known + "$";
    } else {
      if (most >= 0 && least > most)
        return refuse(
            where, "minLength is " + std::to_string(least) + ", more than maxLength " + std::to_string(most));
      return "\"\\\"\" char{" + std::to_string(least) + "," + (most < 0 ? "" : std::to_string(most)) +
             "} \"\\\"\"";
    }
    if (find(given, "minLength") != nullptr || find(given, "maxLength") != nullptr)
      return refuse(where, "a grammar cannot express minLength or maxLength next to pattern or format");
    if (!own) return refuse(where, "pattern must be a string, got " + dump(*definition));
    std::string reason;
    const std::optional<std::string> expression = pattern_expression(*own, &reason);
    if (!expression) return refuse(where, reason);
    return "\"\\\"\" " + rule(*expression) + " \"\\\"\"";
  }

  /// A bound of a range of values.
  struct Bound {
    std::optional<Integer> value;
    bool is_open = false;  // the value itself is not valid
  };
  /// The tighter bound of two keywords. `sign` is 1 for a minimum and -1 for a maximum.
  Bound bound(const Json& given, const char* name, const char* exclusive, int sign,
              const std::string& where) {
    Bound tight;
    for (const auto& [key, is_open] : {std::pair{name, false}, {exclusive, true}}) {
      const Json* const value = find(given, key);
      if (value == nullptr) continue;
      const std::optional<Integer> found =
          value->is(Kind::Number) ? integer_of(value->text, kMaxDigits) : std::nullopt;
      if (!found) {
        refuse(where, std::string(key) + " is " + dump(*value) +
                          "; a grammar can express integers of at most " + std::to_string(kMaxDigits) +
                          " digits");
        return {};
      }
      const int order = tight.value ? sign * compare(*found, *tight.value) : 1;
      if (order > 0 || (order == 0 && is_open)) tight = {found, is_open};
    }
    return tight;
  }
  /// Sets a missing bound to the value of kFreeDigits digits, or of more digits if the other bound has more.
  static void complete(Bound* low, Bound* high) {
    size_t size = kFreeDigits;
    for (const Bound* one : {low, high})
      if (one->value)
        size = std::max(size, one->value->digits.size() +
                                  (one->value->digits.find_first_not_of('9') == std::string::npos));
    if (!low->value) low->value = Integer{true, std::string(size, '9')};
    if (!high->value) high->value = Integer{false, std::string(size, '9')};
  }
  std::string refuse_range(const Bound& low, const Bound& high, const std::string& where) {
    return refuse(where, "no value is between " + low.value->text() + " and " + high.value->text());
  }
  std::string integer(const Json& given, const std::string& where) {
    Bound low = bound(given, "minimum", "exclusiveMinimum", 1, where);
    Bound high = bound(given, "maximum", "exclusiveMaximum", -1, where);
    if (failed_) return {};
    if (low.is_open) low = {next_to(*low.value, 1)};
    if (high.is_open) high = {next_to(*high.value, -1)};
    complete(&low, &high);
    const Integer &first = *low.value, &last = *high.value;
    if (compare(first, last) > 0) return refuse_range(low, high, where);
    std::vector<std::string> parts;
    if (first.is_negative)
      parts.push_back("\"-\" (" + unsigned_range(last.is_negative ? last.digits : "1", first.digits) + ")");
    if (!last.is_negative)
      parts.push_back(unsigned_range(first.is_negative ? "0" : first.digits, last.digits));
    return rule(join(parts, " | "));
  }
  std::string number(const Json& given, const std::string& where) {
    Bound low = bound(given, "minimum", "exclusiveMinimum", 1, where);
    Bound high = bound(given, "maximum", "exclusiveMaximum", -1, where);
    if (failed_) return {};
    complete(&low, &high);
    const Integer &first = *low.value, &last = *high.value;
    const int order = compare(first, last);
    if (order > 0 || (order == 0 && (low.is_open || high.is_open))) return refuse_range(low, high, where);
    std::vector<std::string> parts;
    const std::string any_fraction = R"( ("." [0-9]{1,15})?)", some = R"( "." "0"{0,14} [1-9] [0-9]{0,14})";
    // the values of one sign, by their distances from 0
    const auto side = [&](const std::string& minus, const std::string& least, const std::string& greatest,
                          bool past_least, bool below) {
      const auto exactly = [&](const std::string& digits) { return minus + "\"" + digits + "\""; };
      const int ordered = compare_digits(least, greatest);
      if (ordered < 0) {
        parts.push_back(exactly(least) + (past_least ? some : any_fraction));
        const std::string from = digits_after(least), to = digits_before(greatest);
        if (compare_digits(from, to) <= 0)
          parts.push_back(minus + "(" + unsigned_range(from, to) + ")" + any_fraction);
      }
      if (!below && (ordered < 0 || !past_least)) parts.push_back(exactly(greatest) + R"( ("." "0"{1,15})?)");
    };
    const bool has_zero = !last.is_negative;
    if (first.is_negative)
      side("\"-\" ", has_zero ? "0" : last.digits, first.digits,
           high.is_open && (!has_zero || last.digits == "0"), low.is_open);
    else if (first.digits == "0" && !low.is_open)
      parts.emplace_back(R"("-0" ("." "0"{1,15})?)");
    if (has_zero)
      side("", first.is_negative ? "0" : first.digits, last.digits, low.is_open && !first.is_negative,
           high.is_open);
    return rule(join(parts, " | "));
  }

  const Json& root_;
  std::vector<std::string> rules_;
  std::map<std::string, std::string> references_;
  bool failed_ = false;
};

}  // namespace
}  // namespace schema

Result<std::string> grammar_of(std::string_view text) {
  Result<Json> root = Json::parse(text, Json::kMaxSchemaDepth);
  if (!root.ok()) {
    TORCHETTE_LOG(Error, "the schema at #: it is not a JSON text, or it is nested more than %d deep",
                  Json::kMaxSchemaDepth);
    return root.error();
  }
  schema::merge_duplicate_keys(&*root);
  schema::resolve_references(&*root);
  schema::Converter converter(*root);
  std::string out = "root ::= " + converter.convert(*root, "#", 0);
  if (converter.failed()) return Error::InvalidArgument;
  for (const std::string& rule : converter.rules()) out += "\n" + rule;
  return out + schema::kBase;
}

Result<std::string> grammar_of_pattern(const std::string& pattern) {
  std::string reason;
  const std::optional<std::string> expression = schema::text_expression(pattern, &reason);
  if (expression) return "root ::= " + *expression + "\n";
  TORCHETTE_LOG(Error, "%s", reason.c_str());
  return Error::InvalidArgument;
}

}  // namespace torchette::extension::llm
