// SPDX-License-Identifier: BSD-3-Clause
// Python's % of a string: its conversions with flags, a width and a precision.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "torchette/llm/text/jinja/builtins.h"
#include "torchette/llm/text/jinja/evaluator.h"
#include "torchette/llm/text/jinja/strings.h"

namespace torchette::extension::llm::jinja {
namespace {

constexpr int kMaxWidth = 1000, kMaxPrecision = 100;

struct Conversion {
  std::string flags;
  int width = 0, precision = -1;  // a negative precision is none
  char letter = 0;

  /// The format of std::snprintf() for a type with a prefix such as "ll".
  std::string form(const char* prefix, char type) const {
    const std::string after = precision < 0 ? "" : "." + std::to_string(precision);
    return "%" + flags + (width > 0 ? std::to_string(width) : "") + after + prefix + type;
  }
};

class Formatter {
 public:
  Formatter(Evaluator& evaluator, int line, const std::string& form, const Value::List& arguments)
      : evaluator_(evaluator), line_(line), form_(form), arguments_(arguments) {}

  Result<Value> run() {
    while (at_ < form_.size()) {
      const char c = form_[at_++];
      if (c != '%')
        out_ += c;
      else
        TORCHETTE_TRY(convert());
    }
    if (next_ < arguments_.size()) return fail("a string with % has fewer conversions than arguments");
    return Value::of(std::move(out_));
  }

 private:
  Error fail(const std::string& message) { return evaluator_.fail(line_, message); }
  Error number(int max, int* out) {
    for (; at_ < form_.size() && form_[at_] >= '0' && form_[at_] <= '9'; ++at_) {
      *out = *out * 10 + (form_[at_] - '0');
      if (*out > max) return fail("a width or precision after % is more than " + std::to_string(max));
    }
    return Error::Ok;
  }
  Error convert();
  Error text(const Conversion& conversion, const Value& value);
  Error integer(const Conversion& conversion, const Value& value);
  Error real(const Conversion& conversion, const Value& value);

  Evaluator& evaluator_;
  int line_;
  const std::string& form_;
  const Value::List& arguments_;
  size_t at_ = 0, next_ = 0;
  std::string out_;
};

/// The conversion after a %.
Error Formatter::convert() {
  Conversion conversion;
  for (; at_ < form_.size() && std::string_view("-+ #0").find(form_[at_]) != std::string_view::npos; ++at_)
    if (conversion.flags.find(form_[at_]) == std::string::npos) conversion.flags += form_[at_];
  TORCHETTE_TRY(number(kMaxWidth, &conversion.width));
  if (at_ < form_.size() && form_[at_] == '.') {
    ++at_;
    conversion.precision = 0;
    TORCHETTE_TRY(number(kMaxPrecision, &conversion.precision));
  }
  if (at_ == form_.size()) return fail("a string ends after %");
  conversion.letter = form_[at_++];
  if (conversion.letter == '%') {
    out_ += '%';
    return Error::Ok;
  }
  constexpr std::string_view kTexts = "sr", kIntegers = "diuxXo", kReals = "fFeEgG";
  const auto is_in = [&](std::string_view letters) {
    return letters.find(conversion.letter) != std::string_view::npos;
  };
  if (!is_in(kTexts) && !is_in(kIntegers) && !is_in(kReals))
    return evaluator_.unsupported(line_, std::string("the conversion %") + conversion.letter);
  if (next_ == arguments_.size()) return fail("a string with % has more conversions than arguments");
  const Value& value = arguments_[next_++];
  TORCHETTE_TRY(evaluator_.spend(kWorkOfItem + static_cast<size_t>(conversion.width)));
  return is_in(kTexts)      ? text(conversion, value)
         : is_in(kIntegers) ? integer(conversion, value)
                            : real(conversion, value);
}

Error Formatter::text(const Conversion& conversion, const Value& value) {
  Result<std::string> found = evaluator_.text_of(line_, value);
  if (!found.ok()) return found.error();
  if (conversion.letter == 'r' && value.is(Kind::String)) *found = to_repr(value);
  Text all = characters(*found);
  if (conversion.precision >= 0) all = all.substr(0, static_cast<size_t>(conversion.precision));
  const bool is_left = conversion.flags.find('-') != std::string::npos;
  out_ += padded(to_utf8(all), conversion.width, ' ', is_left ? 0 : 1, is_left ? 1 : 0);
  return Error::Ok;
}

Error Formatter::integer(const Conversion& conversion, const Value& value) {
  const bool is_decimal = std::string_view("diu").find(conversion.letter) != std::string_view::npos;
  const bool is_valid_integer = value.is_integer() && (is_decimal || value.integer >= 0);
  const bool is_cut = is_decimal && value.is(Kind::Float) && std::fabs(value.real) < 0x1p63;
  if (!is_valid_integer && !is_cut)
    return fail(std::string("the conversion %") + conversion.letter + " requires an integer");
  char digits[kMaxWidth + kMaxPrecision];
  const auto number = static_cast<long long>(is_cut ? static_cast<int64_t>(value.real) : value.integer);
  std::snprintf(digits, sizeof(digits), conversion.form("ll", is_decimal ? 'd' : conversion.letter).c_str(),
                number);
  out_ += digits;
  return Error::Ok;
}

Error Formatter::real(const Conversion& conversion, const Value& value) {
  if (!value.is_number())
    return fail(std::string("the conversion %") + conversion.letter + " requires a number");
  char digits[kMaxWidth + kMaxPrecision + 400];
  std::snprintf(digits, sizeof(digits), conversion.form("", conversion.letter).c_str(), value.as_double());
  out_ += digits;
  return Error::Ok;
}

}  // namespace

Result<Value> percent_format(Evaluator& evaluator, int line, const std::string& form,
                             const Value::List& arguments) {
  return Formatter(evaluator, line, form, arguments).run();
}

}  // namespace torchette::extension::llm::jinja
