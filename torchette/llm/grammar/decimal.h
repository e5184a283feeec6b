// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic on the decimal digits of JSON numbers, of any size and without rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace torchette::extension::llm::schema {

/// An integer: its digits without leading zeros, "0" for zero, which is not negative.
struct Integer {
  bool is_negative = false;
  std::string digits = "0";

  std::string text() const { return (is_negative ? "-" : "") + digits; }
};

/// Returns a value less than, equal to or greater than 0, like the order of a and b. The digits have no
/// leading zeros.
int compare_digits(const std::string& a, const std::string& b);
int compare(const Integer& a, const Integer& b);
/// Returns the integer plus `step`, which is 1 or -1.
Integer next_to(const Integer& value, int step);
/// Return the digits of the next and of the previous integer. 0 has no previous integer.
std::string digits_after(std::string digits);
std::string digits_before(std::string digits);

/// Returns the value of a JSON number, or nothing if it is not an integer or has more than `max_digits`
/// digits. 1e3 and 1000.0 are 1000.
std::optional<Integer> integer_of(const std::string& number, size_t max_digits);
/// Returns a text that is equal for all JSON numbers of the same value.
std::string normal_form(const std::string& number);
/// Whether a JSON number is an integer. 1e3 and 1.0 are.
bool is_integer(const std::string& number);

}  // namespace torchette::extension::llm::schema
