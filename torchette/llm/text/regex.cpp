// SPDX-License-Identifier: BSD-3-Clause
// A pattern is compiled from its end to its beginning, so each node contains the index of the next node.
// Matching backtracks. Repeated characters, the common repetition in tokenizers, match without recursion.
#include "torchette/llm/text/regex.h"

#include <algorithm>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr uint32_t kUnbounded = 0xFFFFFFFF;
constexpr uint32_t kMaxRepeat = 1000;
constexpr size_t kMaxNodes = 20000;
constexpr int kMaxDepth = 64;                // of groups in a pattern
constexpr int kMaxRecursion = 4000;          // of the matcher
constexpr size_t kStepsPerCharacter = 4000;  // maximum of steps per character of the text

struct NamedCategories {
  const char* name;
  uint32_t categories;
};
constexpr NamedCategories kNamed[] = {
    {"L", kLetters},
    {"M", kMarks},
    {"N", kNumbers},
    {"P", kPunctuation},
    {"S", kSymbols},
    {"Z", mask(Category::Zs, Category::Zp)},
    {"C", mask(Category::Cc, Category::Co) | mask(Category::Cn)},
    {"Letter", kLetters},
    {"Lu", mask(Category::Lu)},
    {"Ll", mask(Category::Ll)},
    {"Lt", mask(Category::Lt)},
    {"Lm", mask(Category::Lm)},
    {"Lo", mask(Category::Lo)},
    {"Mn", mask(Category::Mn)},
    {"Mc", mask(Category::Mc)},
    {"Me", mask(Category::Me)},
    {"Nd", mask(Category::Nd)},
    {"Nl", mask(Category::Nl)},
    {"No", mask(Category::No)},
    {"Pc", mask(Category::Pc)},
    {"Pd", mask(Category::Pd)},
    {"Ps", mask(Category::Ps)},
    {"Pe", mask(Category::Pe)},
    {"Pi", mask(Category::Pi)},
    {"Pf", mask(Category::Pf)},
    {"Po", mask(Category::Po)},
    {"Sm", mask(Category::Sm)},
    {"Sc", mask(Category::Sc)},
    {"Sk", mask(Category::Sk)},
    {"So", mask(Category::So)},
    {"Zs", mask(Category::Zs)},
    {"Zl", mask(Category::Zl)},
    {"Zp", mask(Category::Zp)},
    {"Cc", mask(Category::Cc)},
    {"Cf", mask(Category::Cf)},
    {"Cn", mask(Category::Cn)},
    {"Co", mask(Category::Co)},
};

CharSet one(char32_t c) {
  CharSet set;
  set.ranges.emplace_back(c, c);
  return set;
}

/// Fills the table of ASCII characters.
CharSet with_ascii_bits(CharSet set) {
  for (char32_t c = 0; c < 128; ++c) set.ascii[c / 64] |= uint64_t{set.contains(c)} << c % 64;
  return set;
}

}  // namespace

bool CharSet::has(char32_t c) const {
  for (const auto& [low, high] : ranges)
    if (c >= low && c <= high) return true;
  if (categories != 0 && is_in(c, categories)) return true;
  if ((space && is_space(c)) || (word && is_word(c))) return true;
  for (const CharSet& set : nested)
    if (set.contains(c)) return true;
  return false;
}

bool CharSet::contains(char32_t c) const {
  bool found = has(c);
  if (!found && ignore_case) {
    Text lower;
    append_lower(c, &lower);
    const char32_t l = c == 0x17F ? U's' : lower[0];  // the long s is a lower-case letter
    found = has(l) || (l >= 'a' && l <= 'z' && has(l - 32));
  }
  for (const CharSet& set : intersected) found = found && set.contains(c);
  return found != negated;
}

/// Each function parses the construct in its name, and adds its nodes before the node `next`.
class RegexParser {
 public:
  RegexParser(const Text& pattern, Regex::Dialect dialect, Regex* out)
      : pattern_(pattern), dialect_(dialect), out_(*out) {}

  Error parse() {
    const uint32_t accept = add(Regex::Op::Accept, 0);
    TORCHETTE_TRY(alternatives(accept, 0, &out_.start_));
    if (at_ != pattern_.size()) return syntax_error("unmatched )");
    return Error::Ok;
  }

 private:
  using Op = Regex::Op;
  struct Repeat {
    uint32_t min = 1, max = 1;
    bool lazy = false, possessive = false;
  };

  Error syntax_error(const char* what) const {
    TORCHETTE_LOG(Error, "pattern %s: %s at character %zu", to_utf8(pattern_).c_str(), what, at_);
    return Error::InvalidExternalData;
  }
  Error unsupported(const char* what) const {
    TORCHETTE_LOG(Error, "pattern %s: %s at character %zu is not supported", to_utf8(pattern_).c_str(), what,
                  at_);
    return Error::NotSupported;
  }
  bool is_at_end() const { return at_ >= pattern_.size(); }
  bool next_is(std::string_view text) const {
    for (size_t i = 0; i < text.size(); ++i)
      if (at_ + i >= pattern_.size() || pattern_[at_ + i] != static_cast<char32_t>(text[i])) return false;
    return true;
  }
  bool consume(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t add(Op op, uint32_t next) {
    Regex::Node node;
    node.op = op;
    node.next = next;
    out_.nodes_.push_back(std::move(node));
    return static_cast<uint32_t>(out_.nodes_.size() - 1);
  }
  uint32_t add_set(CharSet set) {
    out_.sets_.push_back(with_ascii_bits(std::move(set)));
    return static_cast<uint32_t>(out_.sets_.size() - 1);
  }

  Error alternatives(uint32_t next, int depth, uint32_t* out) {
    if (depth > kMaxDepth) return syntax_error("groups are nested too deeply");
    const bool ignore_case = ignore_case_;  // (?i) applies to the end of its group
    std::vector<uint32_t> branches(1);
    TORCHETTE_TRY(sequence(next, depth, &branches[0]));
    while (consume("|")) {
      branches.emplace_back();
      TORCHETTE_TRY(sequence(next, depth, &branches.back()));
    }
    ignore_case_ = ignore_case;
    if (branches.size() == 1) {
      *out = branches[0];
      return Error::Ok;
    }
    *out = add(Op::Split, 0);
    out_.nodes_[*out].branches = std::move(branches);
    return Error::Ok;
  }

  /// A part of the pattern. It is compiled after the parts that follow it.
  struct Part {
    size_t begin, end;
    bool ignore_case;
    Repeat repeat;
  };

  Error sequence(uint32_t next, int depth, uint32_t* out) {
    std::vector<Part> parts;
    while (!is_at_end() && pattern_[at_] != '|' && pattern_[at_] != ')') {
      if (consume("(?i)")) {
        ignore_case_ = true;
        continue;
      }
      Part part{at_, 0, ignore_case_, {}};
      TORCHETTE_TRY(skip_atom());
      part.end = at_;
      TORCHETTE_TRY(repetition(&part.repeat));
      parts.push_back(part);
    }
    const size_t after = at_;
    const bool ignore_case = ignore_case_;
    for (size_t i = parts.size(); i-- > 0;) {
      ignore_case_ = parts[i].ignore_case;
      TORCHETTE_TRY(compile_part(parts[i], depth, next, &next));
    }
    ignore_case_ = ignore_case;
    at_ = after;
    *out = next;
    return Error::Ok;
  }

  /// Moves to the end of the atom at the current position.
  Error skip_atom() {
    size_t groups = 0;
    int sets = 0;
    do {
      if (is_at_end()) return syntax_error(sets > 0 ? "unmatched [" : "unmatched (");
      const char32_t c = pattern_[at_++];
      if (c == '\\') {
        if (is_at_end()) return syntax_error("\\ at the end");
        ++at_;
        if (next_is("{") &&
            (pattern_[at_ - 1] == 'p' || pattern_[at_ - 1] == 'P' || pattern_[at_ - 1] == 'x')) {
          while (!is_at_end() && pattern_[at_] != '}') ++at_;
          if (!consume("}")) return syntax_error("unmatched {");
        } else if (pattern_[at_ - 1] == 'u') {
          at_ = std::min(at_ + 4, pattern_.size());
        } else if (pattern_[at_ - 1] == 'x') {
          at_ = std::min(at_ + 2, pattern_.size());
        }
      } else if (c == '[') {
        ++sets;
        consume("^");
        if (next_is("]")) ++at_;
      } else if (c == ']' && sets > 0) {
        --sets;
      } else if (sets == 0) {
        groups += c == '(';
        groups -= c == ')';
      }
    } while (groups > 0 || sets > 0);
    return Error::Ok;
  }

  bool number(uint32_t* out) {
    const size_t begin = at_;
    uint64_t value = 0;
    while (!is_at_end() && pattern_[at_] >= '0' && pattern_[at_] <= '9' && value <= kMaxRepeat)
      value = value * 10 + (pattern_[at_++] - '0');
    *out = static_cast<uint32_t>(value);
    return at_ != begin;
  }

  Error repetition(Repeat* out) {
    bool counted = false;
    if (consume("*")) {
      *out = {0, kUnbounded, false, false};
    } else if (consume("+")) {
      *out = {1, kUnbounded, false, false};
    } else if (consume("?")) {
      *out = {0, 1, false, false};
    } else if (next_is("{")) {
      counted = true;
      ++at_;
      if (!number(&out->min)) out->min = 0;
      out->max = out->min;
      if (consume(",") && !number(&out->max)) out->max = kUnbounded;
      if (!consume("}")) return syntax_error("{ does not begin a repetition");
      if (out->min > kMaxRepeat || (out->max != kUnbounded && out->max > kMaxRepeat) || out->max < out->min)
        return syntax_error("the bounds of a repetition are invalid");
    } else {
      return Error::Ok;
    }
    if (consume("?")) {
      out->lazy = true;
    } else if (next_is("+") && (!counted || dialect_ == Regex::Dialect::Rust)) {
      ++at_;
      out->possessive = true;
    } else if (next_is("+") && out->min <= 1 && out->max >= 1) {
      ++at_;  // Oniguruma reads + here as a repetition of the repetition
      out->max = kUnbounded;
    }
    if (!is_at_end() && (next_is("*") || next_is("+") || next_is("?")))
      return unsupported("a repetition of a repetition");
    return Error::Ok;
  }

  Error compile_part(const Part& part, int depth, uint32_t next, uint32_t* out) {
    const Repeat& repeat = part.repeat;
    at_ = part.begin;
    if (out_.nodes_.size() > kMaxNodes) return syntax_error("too long a pattern");
    CharSet set;
    bool is_set = false;
    TORCHETTE_TRY(character(&set, &is_set));
    if (is_set) {
      if (at_ != part.end) return syntax_error("an ambiguous construct");
      const uint32_t node = add(Op::Set, next);
      Regex::Node& made = out_.nodes_[node];
      made.min = repeat.min;
      made.max = repeat.max;
      made.lazy = repeat.lazy;
      made.possessive = repeat.possessive;
      made.set = add_set(std::move(set));
      *out = node;
      return Error::Ok;
    }
    if (repeat.possessive) {
      const uint32_t accept = add(Op::Accept, 0), node = add(Op::Atomic, next);
      uint32_t body = 0;
      Part inside = part;
      inside.repeat.possessive = false;
      TORCHETTE_TRY(compile_part(inside, depth + 1, accept, &body));
      out_.nodes_[node].branches = {body};
      *out = node;
      return Error::Ok;
    }
    // from the end: the unbounded repetition, the optional repetitions, the required repetitions
    const auto set_branches = [&](uint32_t node, uint32_t again, uint32_t on) {
      out_.nodes_[node].branches =
          repeat.lazy ? std::vector<uint32_t>{on, again} : std::vector<uint32_t>{again, on};
    };
    uint32_t last = next;
    if (repeat.max == kUnbounded) {
      const uint32_t loop = add(Op::Split, 0);
      uint32_t body = 0;
      TORCHETTE_TRY(atom(part, depth, loop, &body));
      set_branches(loop, body, next);
      last = loop;
    }
    for (uint32_t i = repeat.min; repeat.max != kUnbounded && i < repeat.max; ++i) {
      uint32_t body = 0;
      TORCHETTE_TRY(atom(part, depth, last, &body));
      const uint32_t split = add(Op::Split, 0);
      set_branches(split, body, next);
      last = split;
    }
    for (uint32_t i = 0; i < repeat.min; ++i) {
      TORCHETTE_TRY(atom(part, depth, last, &last));
      if (out_.nodes_.size() > kMaxNodes) return syntax_error("too long a pattern");
    }
    *out = last;
    return Error::Ok;
  }

  /// Compiles an atom that is not one character: a group or an assertion.
  Error atom(const Part& part, int depth, uint32_t next, uint32_t* out) {
    at_ = part.begin;
    ignore_case_ = part.ignore_case;
    if (out_.nodes_.size() > kMaxNodes) return syntax_error("too long a pattern");
    if (consume("^")) {
      *out = add(dialect_ == Regex::Dialect::Rust ? Op::TextStart : Op::LineStart, next);
    } else if (consume("$")) {
      *out = add(dialect_ == Regex::Dialect::Rust ? Op::TextEnd : Op::LineEnd, next);
    } else if (consume("\\A")) {
      *out = add(Op::TextStart, next);
    } else if (consume("\\z")) {
      *out = add(Op::TextEnd, next);
    } else if (consume("\\b") || consume("\\B")) {
      *out = add(Op::WordEdge, next);
      out_.nodes_[*out].negated = pattern_[at_ - 1] == 'B';
      out_.nodes_[*out].set = add_set(word());
    } else if (consume("(?:")) {
      TORCHETTE_TRY(alternatives(next, depth + 1, out));
    } else if (consume("(?i:")) {
      ignore_case_ = true;
      TORCHETTE_TRY(alternatives(next, depth + 1, out));
    } else if (consume("(?>")) {
      TORCHETTE_TRY(independent_group(Op::Atomic, false, depth, next, out));
    } else if (consume("(?=")) {
      TORCHETTE_TRY(independent_group(Op::Look, false, depth, next, out));
    } else if (consume("(?!")) {
      TORCHETTE_TRY(independent_group(Op::Look, true, depth, next, out));
    } else if (consume("(?<=") || consume("(?<!")) {
      const bool negated = pattern_[at_ - 1] == '!';
      CharSet set;
      bool is_set = false;
      TORCHETTE_TRY(character(&set, &is_set));
      if (!is_set || !next_is(")")) return unsupported("a lookbehind of more than one character");
      *out = add(Op::LookBehind, next);
      out_.nodes_[*out].negated = negated;
      out_.nodes_[*out].set = add_set(std::move(set));
    } else if (next_is("(?")) {
      return unsupported("this kind of group");
    } else if (consume("(")) {
      TORCHETTE_TRY(alternatives(next, depth + 1, out));
    } else {
      return syntax_error("a repetition without an operand");
    }
    at_ = part.end;
    return Error::Ok;
  }

  Error independent_group(Op op, bool negated, int depth, uint32_t next, uint32_t* out) {
    const uint32_t accept = add(Op::Accept, 0);
    uint32_t body = 0;
    TORCHETTE_TRY(alternatives(accept, depth + 1, &body));
    *out = add(op, next);
    out_.nodes_[*out].negated = negated;
    out_.nodes_[*out].branches = {body};
    return Error::Ok;
  }

  /// Parses a character or a set of characters. `*is_set` is false if the next construct is neither.
  Error character(CharSet* out, bool* is_set) {
    *is_set = true;
    const char32_t c = is_at_end() ? U')' : pattern_[at_];
    if (c == '[') {
      ++at_;
      return set(out, 0);
    }
    if (c == '.') {
      ++at_;
      *out = one('\n');
      out->negated = true;
    } else if (c == '\\' && !next_is("\\A") && !next_is("\\z") && !next_is("\\b") && !next_is("\\B")) {
      ++at_;
      TORCHETTE_TRY(escaped(out));
      out->ignore_case = ignore_case_ && !out->ranges.empty();
    } else if (c == '(' || c == ')' || c == '|' || c == '^' || c == '$' || c == '*' || c == '+' || c == '?' ||
               c == '\\') {
      *is_set = false;
    } else {
      ++at_;
      *out = literal(c);
    }
    return Error::Ok;
  }

  CharSet word() const {
    CharSet set;
    set.word = true;
    if (dialect_ == Regex::Dialect::Rust) return set;
    CharSet others;  // in Oniguruma \w excludes the joiners and includes the digits of Latin-1
    others.ranges = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}};
    set.nested.push_back(others);
    CharSet no_joiners;
    no_joiners.ranges = {{0x200C, 0x200D}};
    no_joiners.negated = true;
    set.intersected.push_back(no_joiners);
    return set;
  }

  CharSet literal(char32_t c) const {
    CharSet set = one(c);
    if (ignore_case_) {
      Text lower;
      append_lower(c, &lower);
      set = one(lower[0]);
      set.ignore_case = true;
    }
    return set;
  }

  /// Parses an escape after its backslash.
  Error escaped(CharSet* out) {
    if (is_at_end()) return syntax_error("\\ at the end");
    const char32_t c = pattern_[at_++];
    switch (c) {
      case 's':
      case 'S':
        out->space = true;
        out->negated = c == 'S';
        return Error::Ok;
      case 'd':
      case 'D':
        out->categories = mask(Category::Nd);
        out->negated = c == 'D';
        return Error::Ok;
      case 'w':
      case 'W':
        *out = word();
        out->negated = c == 'W';
        return Error::Ok;
      case 'p':
      case 'P':
        out->negated = c == 'P';
        return property(out);
      case 'n':
        *out = one('\n');
        return Error::Ok;
      case 'r':
        *out = one('\r');
        return Error::Ok;
      case 't':
        *out = one('\t');
        return Error::Ok;
      case 'f':
        *out = one('\f');
        return Error::Ok;
      case 'v':
        *out = one('\v');
        return Error::Ok;
      case 'x':
      case 'u':
        return code(c, out);
      default:
        if (c < 0x80 && ((c >= '0' && c <= '9') || (c | 32) - 'a' < 26)) {
          --at_;
          return unsupported("this escape");
        }
        *out = one(c);
        return Error::Ok;
    }
  }

  Error property(CharSet* out) {
    std::string name;
    if (consume("{")) {
      if (consume("^")) out->negated = !out->negated;
      while (!is_at_end() && pattern_[at_] != '}') append_utf8(pattern_[at_++], &name);
      if (!consume("}")) return syntax_error("a { without its }");
    } else if (!is_at_end()) {
      append_utf8(pattern_[at_++], &name);
    }
    for (const NamedCategories& named : kNamed)
      if (name == named.name) {
        out->categories = named.categories;
        return Error::Ok;
      }
    return unsupported(("the class " + name).c_str());
  }

  Error code(char32_t kind, CharSet* out) {
    const bool braces = consume("{");
    const size_t most = braces ? 8 : kind == 'u' ? 4 : 2;
    char32_t value = 0;
    size_t digits = 0;
    for (; digits < most && !is_at_end(); ++digits, ++at_) {
      const char32_t c = pattern_[at_];
      if (c >= '0' && c <= '9')
        value = value * 16 + (c - '0');
      else if ((c | 32) >= 'a' && (c | 32) <= 'f')
        value = value * 16 + ((c | 32) - 'a' + 10);
      else
        break;
    }
    if (digits == 0 || (!braces && digits != most) || (braces && !consume("}")) || value > 0x10FFFF)
      return syntax_error("an invalid code point");
    *out = one(value);
    return Error::Ok;
  }

  /// Parses a set of characters after its [.
  Error set(CharSet* out, int depth) {
    if (depth > 8) return syntax_error("sets are nested too deeply");
    CharSet now;
    const bool negated = consume("^");
    now.ignore_case = ignore_case_;
    for (bool first = true; first || !next_is("]"); first = false) {
      if (is_at_end()) return syntax_error("unmatched [");
      if (next_is("[:")) return unsupported("a POSIX class");
      if (consume("&&")) {
        CharSet rest;
        TORCHETTE_TRY(set_until_end(&rest, depth + 1));
        now.intersected.push_back(std::move(rest));
        break;
      }
      CharSet part;
      if (consume("[")) {
        TORCHETTE_TRY(set(&part, depth + 1));
        now.nested.push_back(std::move(part));
        continue;
      }
      TORCHETTE_TRY(member(&part));
      if (part.ranges.empty()) {
        now.nested.push_back(std::move(part));
        continue;
      }
      char32_t last = part.ranges[0].first;
      if (next_is("-") && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        ++at_;
        CharSet end;
        TORCHETTE_TRY(member(&end));
        if (end.ranges.empty() || end.ranges[0].first < last) return syntax_error("an invalid range");
        last = end.ranges[0].first;
      }
      now.ranges.emplace_back(part.ranges[0].first, last);
    }
    if (!consume("]")) return syntax_error("unmatched [");
    now.negated = negated;
    *out = std::move(now);
    return Error::Ok;
  }
  /// Parses the set after &&, up to the ] of the outer set.
  Error set_until_end(CharSet* out, int depth) {
    CharSet part;
    TORCHETTE_TRY(set(&part, depth));
    --at_;
    *out = std::move(part);
    return Error::Ok;
  }
  Error member(CharSet* out) {
    if (is_at_end()) return syntax_error("unmatched [");
    if (consume("\\")) return escaped(out);
    *out = one(pattern_[at_++]);
    return Error::Ok;
  }

  const Text& pattern_;
  Regex::Dialect dialect_;
  Regex& out_;
  size_t at_ = 0;
  bool ignore_case_ = false;
};

class RegexMatcher {
 public:
  static constexpr size_t kNone = Text::npos;

  RegexMatcher(const Regex& regex, const Text& text)
      : regex_(regex), text_(text), steps_(kStepsPerCharacter * (text.size() + 1)) {}

  bool has_exceeded_limit() const { return has_exceeded_limit_; }

  /// Returns the end of the match that begins at `at` with node `n`, or kNone.
  size_t match(uint32_t n, size_t at, int depth) {
    if (depth > kMaxRecursion) return exceed_limit();
    while (true) {
      if (steps_-- == 0) return exceed_limit();
      const Regex::Node& node = regex_.nodes_[n];
      switch (node.op) {
        case Regex::Op::Accept:
          return at;
        case Regex::Op::Set: {
          const size_t end = characters(node, at);
          if (end == kNone) return kNone;
          const size_t least = at + node.min;
          if (node.possessive || end == least) {
            at = end;
            n = node.next;
            continue;
          }
          for (size_t i = 0; i <= end - least; ++i) {
            const size_t found = match(node.next, node.lazy ? least + i : end - i, depth + 1);
            if (found != kNone || has_exceeded_limit_) return found;
          }
          return kNone;
        }
        case Regex::Op::Split:
          for (size_t i = 0; i + 1 < node.branches.size(); ++i) {
            const size_t found = match(node.branches[i], at, depth + 1);
            if (found != kNone || has_exceeded_limit_) return found;
          }
          n = node.branches.back();
          continue;
        case Regex::Op::Atomic: {
          const size_t end = match(node.branches[0], at, depth + 1);
          if (end == kNone) return kNone;
          at = end;
          break;
        }
        case Regex::Op::Look:
          if ((match(node.branches[0], at, depth + 1) == kNone) != node.negated || has_exceeded_limit_)
            return kNone;
          break;
        case Regex::Op::LookBehind:
          if ((at > 0 && regex_.sets_[node.set].holds(text_[at - 1])) == node.negated) return kNone;
          break;
        case Regex::Op::LineStart:
          if (at != 0 && text_[at - 1] != '\n') return kNone;
          break;
        case Regex::Op::LineEnd:
          if (at != text_.size() && text_[at] != '\n') return kNone;
          break;
        case Regex::Op::TextStart:
          if (at != 0) return kNone;
          break;
        case Regex::Op::TextEnd:
          if (at != text_.size()) return kNone;
          break;
        case Regex::Op::WordEdge: {
          const CharSet& word = regex_.sets_[node.set];
          const bool before = at > 0 && word.holds(text_[at - 1]);
          const bool after = at < text_.size() && word.holds(text_[at]);
          if ((before != after) == node.negated) return kNone;
          break;
        }
      }
      n = node.next;
    }
  }

 private:
  size_t exceed_limit() {
    has_exceeded_limit_ = true;
    return kNone;
  }
  /// Returns the end of the longest sequence of characters that the node matches, or kNone.
  size_t characters(const Regex::Node& node, size_t at) {
    const CharSet& set = regex_.sets_[node.set];
    size_t end = at;
    while (end < text_.size() && end - at < node.max && set.holds(text_[end])) ++end;
    steps_ -= std::min(steps_, (end - at) / 8);
    return end - at < node.min ? kNone : end;
  }

  const Regex& regex_;
  const Text& text_;
  size_t steps_;
  bool has_exceeded_limit_ = false;
};

Result<Regex> Regex::compile(std::string_view pattern, Dialect dialect) {
  const Result<Text> text = to_text(pattern);
  if (!text.ok()) return text.error();
  Regex regex;
  TORCHETTE_TRY(RegexParser(*text, dialect, &regex).parse());
  return regex;
}

Regex Regex::literal(const Text& text) {
  Regex regex;
  regex.nodes_.resize(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    regex.nodes_[i].op = Op::Set;
    regex.nodes_[i].set = static_cast<uint32_t>(i);
    regex.nodes_[i].next = static_cast<uint32_t>(i + 1);
    regex.sets_.push_back(with_ascii_bits(one(text[i])));
  }
  regex.nodes_[text.size()].op = Op::Accept;
  return regex;
}

Error Regex::search(const Text& text, size_t from, size_t* start, size_t* end) const {
  RegexMatcher matcher(*this, text);
  for (size_t at = from; at <= text.size(); ++at) {
    *end = matcher.match(start_, at, 0);
    TORCHETTE_CHECK(!matcher.has_exceeded_limit(), OutOfResources,
                    "matching a pattern needs too many steps for this text");
    if (*end != RegexMatcher::kNone) {
      *start = at;
      return Error::Ok;
    }
  }
  *start = Text::npos;
  return Error::Ok;
}

}  // namespace torchette::extension::llm
