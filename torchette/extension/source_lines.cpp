// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/source_lines.h"

#include <string_view>

#include "torchette/schema/program.h"

namespace torchette::extension {

namespace {

std::string_view text(const flat::Table& table, uint16_t slot) {
  const Span<const char> found = table.string(slot);
  return {found.data(), found.size()};
}

}  // namespace

std::string SourceLines::of(const Method& method, size_t index) {
  flat::Reader reader = method.program_->reader();
  const flat::Tables chains = flat::Table::at(&reader, method.plan_).tables(schema::ExecutionPlan::kChains);
  size_t chain = 0;
  size_t count = 0;
  for (; chain < chains.size(); ++chain, index -= count) {
    count = chains[chain].tables(schema::Chain::kInstructions).size();
    if (index < count) break;
  }
  if (chain == chains.size()) return {};
  const flat::Tables lines = chains[chain].tables(schema::Chain::kStacktrace);
  if (index >= lines.size()) return {};
  // A file may contain stack traces. The innermost line outside torch is the most useful.
  const flat::Tables frames = lines[index].tables(schema::FrameList::kItems);
  std::string line;
  for (size_t i = frames.size(); i-- > 0 && line.empty();) {
    const std::string_view file = text(frames[i], schema::Frame::kFilename);
    const bool is_in_torch = file.find("/site-packages/torch/") != std::string_view::npos;
    if (file.empty() || (is_in_torch && i > 0)) continue;
    line.append(file).append(":").append(std::to_string(frames[i].get<int32_t>(schema::Frame::kLineno)));
    const std::string_view function = text(frames[i], schema::Frame::kName);
    if (!function.empty()) line.append(", in ").append(function);
    // The name of the module precedes its lines, as a frame without a file.
    for (size_t j = i; j-- > 0;) {
      if (!text(frames[j], schema::Frame::kFilename).empty()) continue;
      const std::string_view module = text(frames[j], schema::Frame::kName);
      if (!module.empty()) line.append(" of ").append(module);
      break;
    }
    const std::string_view code = text(frames[i], schema::Frame::kContext);
    if (!code.empty()) line.append(": ").append(code);
  }
  return reader.ok() ? line : std::string();
}

void SourceLines::log(const Method& method, size_t index) {
  const std::string line = of(method, index);
  if (!line.empty()) TORCHETTE_LOG(Error, "%s", line.c_str());
}

Error SourceLines::explain(const Method& method, Error error) {
  // A cancelled execution, or one that did not start, has no failed instruction.
  if (error != Error::Ok && error != Error::EndOfMethod && method.next_ > 0) log(method, method.next_ - 1);
  return error;
}

}  // namespace torchette::extension
