// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/schema_references.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <vector>

#include "torchette/llm/grammar/schema_json.h"

namespace torchette::extension::llm::schema {
namespace {

using Kind = Json::Kind;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t i = text.find(from); i != std::string::npos; i = text.find(from, i + to.size()))
    text.replace(i, from.size(), to);
  return text;
}

std::string percent_decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '%' && i + 2 < text.size() && std::isxdigit(static_cast<uint8_t>(text[i + 1])) != 0 &&
        std::isxdigit(static_cast<uint8_t>(text[i + 2])) != 0) {
      out += static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  return out;
}

bool has_scheme(const std::string& uri) {
  const size_t colon =
      uri.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
  return colon != std::string::npos && colon > 0 && uri[colon] == ':';
}

/// Resolves a URI without a fragment against a base, as in RFC 3986.
std::string resolved_uri(const std::string& base, const std::string& uri) {
  if (has_scheme(uri)) return uri;
  const size_t scheme = base.find("://");
  const size_t authority =
      scheme == std::string::npos ? 0 : std::min(base.find('/', scheme + 3), base.size());
  if (uri.compare(0, 2, "//") == 0) return base.substr(0, base.find("//")) + uri;
  std::string path = uri;
  if (uri.compare(0, 1, "/") != 0) {
    const size_t slash = base.rfind('/');
    if (slash != std::string::npos && slash >= authority)
      path = base.substr(authority, slash + 1 - authority) + uri;
    else if (authority > 0)
      path = "/" + uri;
  }
  std::vector<std::string> segments;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string segment = path.substr(at, end - at);
    const bool is_last = end == path.size();
    if (segment == "..") {
      if (segments.size() > 1) segments.pop_back();
    } else if (segment != ".") {
      segments.push_back(segment);
    }
    if (is_last && (segment == "." || segment == "..")) segments.emplace_back();
    at = end + 1;
  }
  std::string out = base.substr(0, authority);
  for (size_t i = 0; i < segments.size(); ++i) out += (i == 0 ? "" : "/") + segments[i];
  return out;
}

class Resolver {
 public:
  /// Visits a schema. `base` is the URI of its resource, `resource` the pointer to it, `pointer` its own.
  void visit(Json* schema, std::string base, std::string resource, const std::string& pointer) {
    if (!schema->is(Kind::Object)) return;
    const std::string id(schema->string("$id"));
    if (id.substr(0, 1) == "#") {
      anchors_.try_emplace(base + percent_decoded(id), pointer);
    } else if (!id.empty()) {
      base = resolved_uri(base, id.substr(0, id.find('#')));
      resource = pointer;
      resources_.try_emplace(base, pointer);
    }
    for (const char* key : {"$anchor", "$dynamicAnchor"})
      if (const Json* name = find(*schema, key); name != nullptr && name->is_string())
        anchors_.try_emplace(base + "#" + name->text, pointer);
    for (size_t i = 0; i < schema->items.size(); ++i) {
      const std::string& key = schema->keys[i];
      Json& value = schema->items[i];
      const std::string place = pointer + "/" + replaced(replaced(key, "~", "~0"), "/", "~1");
      if (key == "$ref" && value.is_string()) references_.push_back({&value.text, base, resource});
      if (key == "const" || key == "enum" || key == "default" || key == "examples") continue;  // values
      const bool is_map =
          value.is(Kind::Object) && (key == "properties" || key == "$defs" || key == "definitions" ||
                                     key == "patternProperties" || key == "dependentSchemas");
      if (value.is(Kind::Object) && !is_map) visit(&value, base, resource, place);
      if (value.is(Kind::Array) || is_map)
        for (size_t k = 0; k < value.items.size(); ++k) {
          const std::string name =
              is_map ? replaced(replaced(value.keys[k], "~", "~0"), "/", "~1") : std::to_string(k);
          visit(&value.items[k], base, resource, place + "/" + name);
        }
    }
  }

  void write() const {
    for (const Reference& reference : references_) {
      const std::string& text = *reference.text;
      const size_t hash = std::min(text.find('#'), text.size());
      const std::string fragment =
          hash < text.size() ? percent_decoded(text.substr(hash + 1)) : std::string();
      const std::string uri = hash == 0 ? reference.base : resolved_uri(reference.base, text.substr(0, hash));
      if (!fragment.empty() && fragment[0] != '/') {
        const auto anchor = anchors_.find(uri + "#" + fragment);
        if (anchor != anchors_.end()) *reference.text = "#" + anchor->second;
        continue;
      }
      const auto resource = resources_.find(uri);
      if (hash == 0)
        *reference.text = "#" + reference.resource + fragment;
      else if (resource != resources_.end())
        *reference.text = "#" + resource->second + fragment;
    }
  }

 private:
  struct Reference {
    std::string* text;
    std::string base, resource;
  };
  std::map<std::string, std::string> resources_, anchors_;  // a URI to a pointer
  std::vector<Reference> references_;
};

}  // namespace

void resolve_references(Json* root) {
  Resolver resolver;
  resolver.visit(root, "", "", "");
  resolver.write();
}

const Json* follow(const Json& root, const std::string& reference) {
  if (reference != "#" && reference.compare(0, 2, "#/") != 0) return nullptr;
  const Json* found = &root;
  for (size_t at = 1; at < reference.size() && found != nullptr;) {
    const size_t end = std::min(reference.find('/', at + 1), reference.size());
    const std::string part = replaced(replaced(reference.substr(at + 1, end - at - 1), "~1", "/"), "~0", "~");
    if (found->is(Kind::Array)) {
      const bool is_index =
          !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
      const size_t index = is_index ? std::strtoul(part.c_str(), nullptr, 10) : SIZE_MAX;
      found = index < found->items.size() ? &found->items[index] : nullptr;
    } else {
      found = find(*found, part);
    }
    at = end;
  }
  return found;
}

}  // namespace torchette::extension::llm::schema
