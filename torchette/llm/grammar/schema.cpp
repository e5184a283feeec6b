// SPDX-License-Identifier: BSD-3-Clause
// The same functions as in torchette/llm/schema.py: both implementations return the same grammar.
#include "torchette/llm/grammar/schema.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "torchette/llm/grammar/schema_gbnf.h"
#include "torchette/llm/grammar/schema_json.h"
#include "torchette/llm/grammar/schema_pattern.h"
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
constexpr int64_t kMaxInteger = 999999999999999;  // 15 digits
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
/// Whether a keyword is only an annotation.
bool is_annotation(std::string_view key) {
  return has(Words{"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
                   "$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "discriminator",
                   "contentEncoding", "contentMediaType", "strict"},
             key);
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
    if (schema.is(Kind::True) || (schema.is(Kind::Object) && schema.items.empty())) return "value";
    if (!schema.is(Kind::Object))
      return refuse(where, "it is " + dump(schema) + ", a schema is an object or true");
    if (depth > kMaxDepth)
      return refuse(where, "it is nested more than " + std::to_string(kMaxDepth) + " deep");
    Json given = only_keys(schema, [](std::string_view key) { return !is_annotation(key); });
    if (const Json* target = find(given, "$ref")) {
      if (!only(given, {"$ref"}, where)) return {};
      return reference(*target, where, depth);
    }
    if (find(given, "const") != nullptr || find(given, "enum") != nullptr) return listed(given, where);
    for (const char* key : {"anyOf", "oneOf"})
      if (find(given, key) != nullptr) return any_of(given, key, where, depth);
    if (find(given, "allOf") != nullptr) {
      const std::optional<Json> merged = merge(given, where);
      return merged ? convert(*merged, where, depth + 1) : std::string();
    }
    std::vector<std::string> kinds;
    if (const Json* said = find(given, "type"); said != nullptr && !said->is(Kind::Null)) {
      if (!list_of_types(*said, where + "/type", &kinds)) return {};
    } else {
      for (const char* kind : {"object", "array", "string", "number"})
        if (std::any_of(given.keys.begin(), given.keys.end(),
                        [&](const std::string& key) { return type_of(kind)->knows(key); }))
          kinds.emplace_back(kind);
      std::vector<std::string> beside = given.keys;
      beside.erase(std::remove(beside.begin(), beside.end(), "type"), beside.end());
      std::sort(beside.begin(), beside.end());
      if (kinds.size() != 1)
        return refuse(where, "it needs a type beside " + (beside.empty() ? "nothing" : join(beside, ", ")));
    }
    std::vector<std::string> strange;
    for (const std::string& key : given.keys)
      if (key != "type" && std::none_of(kinds.begin(), kinds.end(),
                                        [&](const std::string& kind) { return type_of(kind)->knows(key); }))
        strange.push_back(key);
    if (!strange.empty())
      return refuse(where, *std::min_element(strange.begin(), strange.end()) + " of " + join(kinds, " or ") +
                               " cannot be held by a grammar");
    std::vector<std::string> expressions;
    for (const std::string& kind : kinds) expressions.push_back(typed(kind, given, where, depth));
    return any(expressions);
  }

 private:
  std::string refuse(const std::string& where, const std::string& what) {
    if (!failed_) TORCHETTE_LOG(Error, "the schema at %.200s: %.300s", where.c_str(), what.c_str());
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
    refuse(where, *std::min_element(strange.begin(), strange.end()) + " beside " +
                      std::string(*keys.begin()) + " cannot be held by a grammar");
    return false;
  }
  bool is_list(const Json& value, const std::string& where) {
    if (value.is(Kind::Array) && !value.items.empty()) return true;
    refuse(where, "a list that is not empty is expected");
    return false;
  }
  bool list_of_types(const Json& said, const std::string& where, std::vector<std::string>* kinds) {
    if (!said.is_string() && !is_list(said, where)) return false;
    const std::vector<Json> one = {said};
    for (const Json& kind : said.is_string() ? one : said.items) {
      if (!kind.is_string() || type_of(kind.text) == nullptr) {
        refuse(where.substr(0, where.rfind('/')),
               "there is no type " + (kind.is_string() ? kind.text : dump(kind)));
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
    if (type != nullptr && !type->is(Kind::Null) && !list_of_types(*type, where + "/type", &kinds)) return {};
    const bool any_type = type == nullptr || type->is(Kind::Null);
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
          any_type || has(kinds, own) || (own == std::string_view("integer") && has(kinds, "number"));
      const bool is_listed =
          list == nullptr || std::any_of(list->items.begin(), list->items.end(),
                                         [&](const Json& item) { return is_equal(item, value); });
      if (fits && is_listed) expressions.push_back(quoted(dump(value)));
    }
    return expressions.empty() ? refuse(where, "no value fits") : any(expressions);
  }

  std::string any_of(const Json& given, const char* key, const std::string& where, int depth) {
    if (!only(given, {key, "type"}, where)) return {};
    const Json &branches = *find(given, key), *type = find(given, "type");
    const std::string place = where + "/" + key;
    if (!is_list(branches, place)) return {};
    std::vector<std::string> expressions;
    for (size_t i = 0; i < branches.items.size(); ++i) {
      Json branch = branches.items[i];
      if (type != nullptr) {  // the type applies to each branch
        const Json* own = branch.is(Kind::Object) ? find(branch, "type") : nullptr;
        if (!branch.is(Kind::Object) || (own != nullptr && !is_equal(*own, *type)))
          branch = empty(Kind::False);
        else
          set(&branch, "type", *type);
      }
      expressions.push_back(convert(branch, place + "/" + std::to_string(i), depth + 1));
      if (failed_) return {};
    }
    return any(expressions);
  }

  const Json* resolved(const Json& target, const std::string& where) {
    if (!target.is_string() || target.text.substr(0, 1) != "#") {
      refuse(where, "$ref " + dump(target) + " leads out of the schema");
      return nullptr;
    }
    const Json* found = &root_;
    for (size_t at = target.text.find('/'); at != std::string::npos && found != nullptr;) {
      const size_t end = target.text.find('/', at + 1);
      std::string part = target.text.substr(at + 1, end == std::string::npos ? end : end - at - 1);
      for (const auto& [from, to] : {std::pair{"~1", "/"}, {"~0", "~"}})
        for (size_t i = part.find(from); i != std::string::npos; i = part.find(from, i + 1))
          part.replace(i, 2, to);
      if (found->is(Kind::Array)) {
        const bool is_index =
            !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
        const size_t index = is_index ? std::strtoul(part.c_str(), nullptr, 10) : SIZE_MAX;
        found = index < found->items.size() ? &found->items[index] : nullptr;
      } else {
        found = schema::find(*found, part);
      }
      at = end;
    }
    if (found == nullptr) refuse(where, "$ref " + target.text + " leads nowhere");
    return found;
  }
  static const Json* find(const Json& object, std::string_view key) { return schema::find(object, key); }

  std::string reference(const Json& target, const std::string& where, int depth) {
    const Json* const found = resolved(target, where);
    if (found == nullptr) return {};
    const auto [at, is_new] = references_.try_emplace(target.text, "d" + std::to_string(references_.size()));
    const std::string name = at->second;
    if (is_new) {
      const std::string expression = convert(*found, target.text, depth + 1);
      rules_.push_back(name + " ::= " + expression);
    }
    return name;
  }

  std::optional<Json> merge(const Json& given, const std::string& where) {
    Json merged = only_keys(given, [](std::string_view key) { return key != "allOf"; });
    const Json& parts = *find(given, "allOf");
    if (!is_list(parts, where + "/allOf")) return {};
    for (const Json& each : parts.items) {
      const Json* part = &each;
      for (int i = 0; i < kMaxDepth; ++i) {  // a reference may refer to another one
        const Json constraints = only_keys(*part, [](std::string_view key) { return !is_annotation(key); });
        if (!part->is(Kind::Object) || constraints.keys != std::vector<std::string>{"$ref"}) break;
        part = resolved(*find(*part, "$ref"), where);
        if (part == nullptr) return {};
      }
      if (!part->is(Kind::Object)) return refuse(where, "allOf has a part that is no schema"), std::nullopt;
      for (size_t i = 0; i < part->items.size(); ++i) {
        const std::string& key = part->keys[i];
        const Json& value = part->items[i];
        const Json* const known = find(merged, key);
        Json both = known == nullptr ? value : *known;
        if (is_annotation(key) || known == nullptr || is_equal(*known, value)) {
        } else if (key == "required" && value.is(Kind::Array) && known->is(Kind::Array)) {
          both.items.insert(both.items.end(), value.items.begin(), value.items.end());
        } else if (key == "properties" && value.is(Kind::Object) && known->is(Kind::Object) &&
                   agree(*known, value)) {
          for (size_t k = 0; k < value.items.size(); ++k) set(&both, value.keys[k], value.items[k]);
        } else {
          return refuse(where, "allOf says two things of " + key), std::nullopt;
        }
        set(&merged, key, std::move(both));
      }
    }
    return merged;
  }
  static bool agree(const Json& a, const Json& b) {
    for (size_t i = 0; i < b.items.size(); ++i)
      if (const Json* known = find(a, b.keys[i]); known != nullptr && !is_equal(*known, b.items[i]))
        return false;
    return true;
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
      refuse(where, std::string(key) + " is " + dump(*value) + ", it must be a whole number from 0 to 10000");
    return number;
  }

  // --- Objects and arrays ---
  std::string object(const Json& given, const std::string& where, int depth) {
    const Json no_properties = empty(Kind::Object), no_names = empty(Kind::Array);
    const Json* const said = find(given, "properties");
    const Json* const listed = find(given, "required");
    Json properties = said == nullptr ? no_properties : *said;
    const Json& required = listed == nullptr ? no_names : *listed;
    bool fits = properties.is(Kind::Object) && required.is(Kind::Array);
    for (const Json& name : required.items) fits = fits && name.is_string();
    if (!fits) return refuse(where, "properties is an object, required a list of names");
    const Json* const others = find(given, "additionalProperties");
    const Json more =
        others != nullptr ? *others : empty(properties.items.empty() ? Kind::True : Kind::False);
    const std::vector<std::string> known = properties.keys;
    std::set<std::string_view> needed;
    for (const Json& name : required.items) {
      needed.insert(name.text);
      if (has(known, name.text)) continue;
      if (more.is(Kind::False)) return refuse(where, name.text + " is required, and may not be there");
      set(&properties, name.text, more);
    }
    std::vector<std::string> pairs;
    for (size_t i = 0; i < properties.items.size(); ++i) {
      const std::string value =
          convert(properties.items[i], where + "/properties/" + properties.keys[i], depth + 1);
      if (failed_) return {};
      pairs.push_back(quoted(dump_string(properties.keys[i])) + " ws \":\" ws " + value + " ws");
    }
    std::string rest = "\"\"", first = "\"\"";
    if (!more.is(Kind::False)) {
      const std::string value = convert(more, where + "/additionalProperties", depth + 1);
      const std::string pair = rule(other_key(properties.keys) + " ws \":\" ws " + value + " ws");
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
      if (text.ok() && dump_string(name).find('\\') == std::string::npos) plain.push_back(*text);
    }
    return "\"\\\"\" " + other_than(plain, 0) + " \"\\\"\"";
  }
  std::string other_than(const std::vector<Text>& names, int depth) {
    if (depth > 200) return refuse("#", "additionalProperties beside a name of more than 200 characters");
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
    if (prefix != nullptr && !prefix->is(Kind::Array)) return refuse(where, "prefixItems is a list");
    std::vector<std::string> firsts;
    for (size_t i = 0; prefix != nullptr && i < prefix->items.size() && !failed_; ++i)
      firsts.push_back(convert(prefix->items[i], where + "/prefixItems/" + std::to_string(i), depth + 1));
    if (failed_) return {};
    const Json* const said = find(given, "items");
    const Json items = said == nullptr ? empty(Kind::True) : *said;
    const auto size = static_cast<int64_t>(firsts.size());
    if (items.is(Kind::False)) most = most < 0 ? size : std::min(most, size);
    if (most >= 0) {
      firsts.resize(static_cast<size_t>(std::min(most, size)));
      if (least > most)
        return refuse(where, "minItems is " + std::to_string(least) + ", of " + std::to_string(most) +
                                 " items at most");
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

  // --- Strings and numbers ---
  std::string string(const Json& given, const std::string& where) {
    const int64_t least = count(given, "minLength", true, where),
                  most = count(given, "maxLength", false, where);
    if (failed_) return {};
    const Json *const said = find(given, "pattern"), *const form = find(given, "format");
    std::optional<std::string> own;
    if (said != nullptr && !said->is(Kind::Null)) {
      if (said->is_string()) own = said->text;
    } else if (const std::string known =
                   form != nullptr && form->is_string() ? format_pattern(form->text) : "";
               !known.empty()) {
      own = "^" + known + "$";
    } else {
      if (most >= 0 && least > most)
        return refuse(where, "minLength is " + std::to_string(least) + ", maxLength " + std::to_string(most));
      return "\"\\\"\" char{" + std::to_string(least) + "," + (most < 0 ? "" : std::to_string(most)) +
             "} \"\\\"\"";
    }
    if (find(given, "minLength") != nullptr || find(given, "maxLength") != nullptr)
      return refuse(where, "minLength or maxLength beside pattern or format cannot be held by a grammar");
    if (!own) return refuse(where, "pattern is " + dump(*said) + ", no text");
    std::string reason;
    const std::optional<std::string> expression = pattern_expression(*own, &reason);
    if (!expression) return refuse(where, reason);
    return "\"\\\"\" " + rule(*expression) + " \"\\\"\"";
  }

  int64_t bound(const Json& value, const char* name, const std::string& where) {
    if (!value.is(Kind::Number) || value.number != std::floor(value.number) ||
        std::abs(value.number) > static_cast<double>(kMaxInteger)) {
      refuse(where, std::string(name) + " is " + dump(value) +
                        ", a grammar holds whole numbers of at most 15 digits");
      return 0;
    }
    return static_cast<int64_t>(value.number);
  }
  std::string no_number(int64_t low, int64_t high, const std::string& where) {
    return refuse(where, "no number is from " + std::to_string(low) + " to " + std::to_string(high));
  }
  std::string integer(const Json& given, const std::string& where) {
    int64_t low = -kMaxInteger, high = kMaxInteger;
    bool has_low = false, has_high = false;
    for (const auto& [name, shift] : {std::pair{"minimum", 0}, {"exclusiveMinimum", 1}})
      if (const Json* value = find(given, name)) {
        const int64_t found = bound(*value, name, where) + shift;
        low = has_low ? std::max(low, found) : found;
        has_low = true;
      }
    for (const auto& [name, shift] : {std::pair{"maximum", 0}, {"exclusiveMaximum", -1}})
      if (const Json* value = find(given, name)) {
        const int64_t found = bound(*value, name, where) + shift;
        high = has_high ? std::min(high, found) : found;
        has_high = true;
      }
    if (failed_) return {};
    if (low > high) return no_number(low, high, where);
    std::vector<std::string> parts;
    if (low < 0) parts.push_back("\"-\" (" + unsigned_range(std::max<int64_t>(1, -high), -low) + ")");
    if (high >= 0) parts.push_back(unsigned_range(std::max<int64_t>(low, 0), high));
    return rule(join(parts, " | "));
  }
  std::string number(const Json& given, const std::string& where) {
    int64_t low = -kMaxInteger, high = kMaxInteger;
    bool past_low = false, below_high = false;
    for (const auto& [name, is_open] : {std::pair{"minimum", false}, {"exclusiveMinimum", true}})
      if (const Json* value = find(given, name)) {
        const int64_t found = bound(*value, name, where);
        if (found > low || (found == low && is_open)) low = found, past_low = is_open;
      }
    for (const auto& [name, is_open] : {std::pair{"maximum", false}, {"exclusiveMaximum", true}})
      if (const Json* value = find(given, name)) {
        const int64_t found = bound(*value, name, where);
        if (found < high || (found == high && is_open)) high = found, below_high = is_open;
      }
    if (failed_) return {};
    if (low > high || (low == high && (past_low || below_high))) return no_number(low, high, where);
    std::vector<std::string> parts;
    const std::string any_fraction = R"( ("." [0-9]{1,15})?)", some = R"( "." "0"{0,14} [1-9] [0-9]{0,14})";
    const auto side = [&](const std::string& minus, int64_t least, int64_t greatest, bool past_least,
                          bool below) {
      const auto exactly = [&](int64_t n) { return minus + "\"" + std::to_string(n) + "\""; };
      if (greatest > least) parts.push_back(exactly(least) + (past_least ? some : any_fraction));
      if (greatest > least + 1)
        parts.push_back(minus + "(" + unsigned_range(least + 1, greatest - 1) + ")" + any_fraction);
      if (!below && (greatest > least || (greatest == least && !past_least)))
        parts.push_back(exactly(greatest) + R"( ("." "0"{1,15})?)");
    };
    side("\"-\" ", std::max<int64_t>(-high, 0), -low, below_high && high <= 0, past_low);
    side("", std::max<int64_t>(low, 0), high, past_low && low >= 0, below_high);
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
  Result<Json> root = Json::parse(text, Json::kDeep);
  if (!root.ok()) return root.error();
  schema::merge_duplicate_keys(&*root);
  schema::Converter converter(*root);
  std::string out = "root ::= " + converter.convert(*root, "#", 0);
  if (converter.failed()) return Error::InvalidArgument;
  for (const std::string& rule : converter.rules()) out += "\n" + rule;
  return out + schema::kBase;
}

}  // namespace torchette::extension::llm
