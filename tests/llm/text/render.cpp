// SPDX-License-Identifier: BSD-3-Clause
// In: pairs of texts: a chat template, and its names as a JSON object. The size of each text precedes it in
// four bytes. Out, for each pair: the error and the rendered text in hexadecimal, separated by bars.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "torchette/extension/error_name.h"
#include "torchette/llm/text/chat_template.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

namespace {

Result<std::string> rendered(const std::string& source, const std::string& given) {
  const Result<Json> json = Json::parse(given);
  if (!json.ok()) return json.error();
  ChatTemplate::Names names;
  for (size_t i = 0; i < json->items.size(); ++i) names.emplace_back(json->keys[i], json->items[i]);
  const Result<ChatTemplate> made = ChatTemplate::parse(source);
  return made.ok() ? made->render(names) : made.error();
}

}  // namespace

int main() {
  const std::string all{std::istreambuf_iterator<char>(std::cin), {}};
  size_t at = 0;
  const auto next = [&] {
    size_t size = 0;
    for (size_t i = 0; i < 4; ++i) size |= static_cast<size_t>(static_cast<uint8_t>(all.at(at + i))) << 8 * i;
    at += 4 + size;
    return all.substr(at - size, size);
  };
  while (at < all.size()) {
    const std::string source = next(), names = next();
    const Result<std::string> text = rendered(source, names);
    std::printf("%s|", text.ok() ? "Ok" : error_name(text.error()));
    if (text.ok())
      for (char c : *text) std::printf("%02x", static_cast<uint8_t>(c));
    std::printf("\n");
  }
}
