// SPDX-License-Identifier: BSD-3-Clause
// Parses and writes the text of a TreeSpec: JSON of the form [1, {"type": ..., "context": ...,
// "children_spec":
// [...]}]. A context is often a string that contains JSON. The JSON reader stops at the first error.
#include "torchette/extension/pytree.h"

#include <cstdio>

#include "torchette/runtime/platform.h"

namespace torchette::extension::pytree {
namespace {

constexpr int kMaxDepth = 64;  // limits the recursion for an untrusted file

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool failed() const { return failed_; }
  bool at_end() {
    skip();
    return offset_ == text_.size();
  }
  void fail() { failed_ = true, offset_ = text_.size(); }

  /// Returns whether the next character is `c`, and consumes it if so.
  bool consume(char c) {
    skip();
    if (offset_ == text_.size() || text_[offset_] != c) return false;
    ++offset_;
    return true;
  }
  void expect(char c) {
    if (!consume(c)) fail();
  }
  bool next_is(char c) {
    skip();
    return offset_ < text_.size() && text_[offset_] == c;
  }
  bool consume(std::string_view word) {
    skip();
    if (text_.substr(offset_, word.size()) != word) return false;
    offset_ += word.size();
    return true;
  }

  std::string string() {
    std::string result;
    expect('"');
    while (!failed_) {
      if (offset_ == text_.size()) return fail(), result;
      const char c = text_[offset_++];
      if (c == '"') return result;
      if (c == '\\')
        escape(&result);
      else
        result += c;
    }
    return result;
  }

  /// Returns the text of the next value, of any type.
  std::string_view raw_value(int depth) {
    skip();
    const size_t start = offset_;
    if (depth > kMaxDepth) {
      fail();
    } else if (next_is('"')) {
      string();
    } else if (consume('[')) {
      for (bool more = !consume(']'); more && !failed_; more = next_element(']')) raw_value(depth + 1);
    } else if (consume('{')) {
      for (bool more = !consume('}'); more && !failed_; more = next_element('}')) {
        string();
        expect(':');
        raw_value(depth + 1);
      }
    } else {
      const size_t end = text_.find_first_of(",]} \t\r\n", offset_);
      if (end == offset_ || offset_ == text_.size()) fail();
      offset_ = end == std::string_view::npos ? text_.size() : end;
    }
    return failed_ ? std::string_view() : text_.substr(start, offset_ - start);
  }

  /// Is called after an element. Returns whether another element follows; fails if the list does not end.
  bool next_element(char end) {
    if (consume(',')) return true;
    expect(end);
    return false;
  }

 private:
  void skip() {
    while (offset_ < text_.size() && (text_[offset_] == ' ' || text_[offset_] == '\n' ||
                                      text_[offset_] == '\t' || text_[offset_] == '\r'))
      ++offset_;
  }
  unsigned four_digits() {
    unsigned value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = offset_ < text_.size() ? text_[offset_++] : 0;
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return fail(), 0;
      value = value * 16 + static_cast<unsigned>(digit);
    }
    return value;
  }
  void escape(std::string* out) {
    const char c = offset_ < text_.size() ? text_[offset_++] : 0;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        *out += c;
        return;
      case 'b':
        *out += '\b';
        return;
      case 'f':
        *out += '\f';
        return;
      case 'n':
        *out += '\n';
        return;
      case 'r':
        *out += '\r';
        return;
      case 't':
        *out += '\t';
        return;
      case 'u':
        break;
      default:
        return fail();
    }
    unsigned code = four_digits();
    if (code >= 0xD800 && code < 0xDC00) {  // the first half of a surrogate pair
      if (!(offset_ + 1 < text_.size() && text_[offset_] == '\\' && text_[offset_ + 1] == 'u')) return fail();
      offset_ += 2;
      const unsigned low = four_digits();
      if (low < 0xDC00 || low > 0xDFFF) return fail();
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    // Encode as UTF-8.
    const auto put = [&](unsigned byte) { *out += static_cast<char>(byte); };
    if (code < 0x80) return put(code);
    if (code < 0x800) return put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
    if (code < 0x10000)
      return put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)),
        put(0x80 | (code & 0x3F));
  }

  std::string_view text_;
  size_t offset_ = 0;
  bool failed_ = false;
};

/// Reads the keys in the context of a dict. The context is a list, an object with the list as "dict_context",
/// or a string with the JSON text of either.
bool read_keys(std::string_view context, std::vector<std::string>* keys) {
  Reader reader(context);
  if (reader.next_is('"')) {
    const std::string inner = reader.string();
    return !reader.failed() && (inner.empty() || inner[0] != '"') && read_keys(inner, keys);
  }
  if (reader.consume('{')) {
    bool found = false;
    for (bool more = !reader.consume('}'); more && !reader.failed(); more = reader.next_element('}')) {
      const std::string name = reader.string();
      reader.expect(':');
      const std::string_view value = reader.raw_value(0);
      if (name == "dict_context") found = read_keys(value, keys);
    }
    return found && !reader.failed();
  }
  reader.expect('[');
  for (bool more = !reader.consume(']'); more && !reader.failed(); more = reader.next_element(']'))
    keys->push_back(reader.next_is('"') ? reader.string() : std::string(reader.raw_value(0)));
  return !reader.failed();
}

Kind kind_of(std::string_view type) {
  if (type == "builtins.tuple") return Kind::Tuple;
  if (type == "builtins.list") return Kind::List;
  if (type == "builtins.dict" || type == "collections.OrderedDict" || type == "collections.defaultdict")
    return Kind::Dict;
  return Kind::Custom;
}

void read(Reader& reader, int depth, TreeSpec* spec) {
  if (depth > kMaxDepth) return reader.fail();
  reader.expect('{');
  bool is_leaf = false;
  for (bool more = true; more && !reader.failed(); more = reader.next_element('}')) {
    const std::string name = reader.string();
    reader.expect(':');
    if (name == "type") {
      if (reader.consume("null"))
        is_leaf = true;
      else
        spec->type = reader.string();
    } else if (name == "context") {
      spec->context = reader.raw_value(depth);
    } else if (name == "children_spec") {
      reader.expect('[');
      for (bool child = !reader.consume(']'); child && !reader.failed(); child = reader.next_element(']'))
        read(reader, depth + 1, &spec->children.emplace_back());
    } else if (name == "complex") {
      spec->is_complex = reader.raw_value(depth) == "true";
    } else {
      reader.raw_value(depth);
    }
  }
  spec->kind = is_leaf ? Kind::Leaf : kind_of(spec->type);
  if (is_leaf ? !spec->children.empty() || !spec->type.empty() : spec->type.empty()) return reader.fail();
  if (spec->kind == Kind::Dict &&
      (!read_keys(spec->context, &spec->keys) || spec->keys.size() != spec->children.size()))
    reader.fail();
}

void write_string(const std::string& text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned char>(c));
    if (c == '"' || c == '\\')
      (*out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      *out += escaped;
    else
      *out += c;
  }
  *out += '"';
}

void write(const TreeSpec& spec, std::string* out) {
  *out += "{\"type\": ";
  if (spec.is_leaf()) {
    *out += "null";
  } else {
    write_string(spec.type, out);
  }
  *out += ", \"context\": " + spec.context + ", \"children_spec\": [";
  for (size_t i = 0; i < spec.children.size(); ++i) {
    if (i != 0) *out += ", ";
    write(spec.children[i], out);
  }
  *out += spec.is_complex ? "], \"complex\": true}" : "]}";
}

}  // namespace

size_t TreeSpec::num_leaves() const {
  size_t count = is_leaf() ? 1 : 0;
  for (const TreeSpec& child : children) count += child.num_leaves();
  return count;
}

bool operator==(const TreeSpec& a, const TreeSpec& b) {
  return a.kind == b.kind && a.type == b.type && a.context == b.context && a.is_complex == b.is_complex &&
         a.children == b.children;
}

Result<TreeSpec> from_str(const char* text) { return from_str(std::string_view(text)); }

Result<TreeSpec> from_str(Span<const char> text) {
  Reader reader({text.data(), text.size()});
  TreeSpec spec;
  reader.expect('[');
  if (!reader.consume("1")) reader.fail();
  reader.expect(',');
  read(reader, 0, &spec);
  reader.expect(']');
  if (reader.failed() || !reader.at_end()) {
    TORCHETTE_LOG(Error, "the text of a TreeSpec is invalid");
    return Error::InvalidProgram;
  }
  return spec;
}

std::string to_str(const TreeSpec& spec) {
  std::string out = "[1, ";
  write(spec, &out);
  return out + "]";
}

}  // namespace torchette::extension::pytree
