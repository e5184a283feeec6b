// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/decimal.h"

#include <algorithm>
#include <cstdlib>

namespace torchette::extension::llm::schema {
namespace {

/// digits * 10^exponent, without zeros at either end; zero has no digits.
struct Number {
  bool is_negative;
  std::string digits;
  int64_t exponent;
};

constexpr int64_t kMaxExponent =
    1'000'000'000'000;  // larger exponents are clamped; kMaxDigits is far smaller

Number read(const std::string& text) {
  Number number = {text[0] == '-', {}, 0};
  const size_t end = std::min(text.find_first_of("eE"), text.size()), point = text.find('.');
  for (size_t i = number.is_negative; i < end; ++i)
    if (text[i] != '.') number.digits += text[i];
  if (end < text.size())
    number.exponent =
        std::clamp<int64_t>(std::strtoll(text.c_str() + end + 1, nullptr, 10), -kMaxExponent, kMaxExponent);
  if (point < end) number.exponent -= static_cast<int64_t>(end - point - 1);
  while (!number.digits.empty() && number.digits.back() == '0') number.digits.pop_back(), ++number.exponent;
  number.digits.erase(0, number.digits.find_first_not_of('0'));
  if (number.digits.empty()) number = {false, {}, 0};
  return number;
}

}  // namespace

int compare_digits(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
}

int compare(const Integer& a, const Integer& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  return a.is_negative ? compare_digits(b.digits, a.digits) : compare_digits(a.digits, b.digits);
}

std::string digits_after(std::string digits) {
  size_t i = digits.size();
  while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
  if (i == 0) return "1" + digits;
  ++digits[i - 1];
  return digits;
}

std::string digits_before(std::string digits) {
  size_t i = digits.size() - 1;
  while (digits[i] == '0') digits[i--] = '9';
  --digits[i];
  return digits.size() > 1 && digits[0] == '0' ? digits.substr(1) : digits;
}

Integer next_to(const Integer& value, int step) {
  if (value.digits == "0") return {step < 0, "1"};
  Integer next = {value.is_negative,
                  value.is_negative == (step < 0) ? digits_after(value.digits) : digits_before(value.digits)};
  if (next.digits == "0") next.is_negative = false;
  return next;
}

std::optional<Integer> integer_of(const std::string& text, size_t max_digits) {
  Number number = read(text);
  if (number.digits.empty()) return Integer{};
  if (number.exponent < 0 || number.exponent > static_cast<int64_t>(max_digits) ||
      number.digits.size() + static_cast<size_t>(number.exponent) > max_digits)
    return std::nullopt;
  return Integer{number.is_negative, number.digits + std::string(static_cast<size_t>(number.exponent), '0')};
}

std::string normal_form(const std::string& text) {
  const Number number = read(text);
  return (number.is_negative ? "-" : "") + number.digits + "e" + std::to_string(number.exponent);
}

bool is_integer(const std::string& text) { return read(text).exponent >= 0; }

}  // namespace torchette::extension::llm::schema
