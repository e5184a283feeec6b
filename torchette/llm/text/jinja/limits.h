// SPDX-License-Identifier: BSD-3-Clause
// Limits on hostile templates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchette::extension::llm::jinja {

constexpr int kMaxDepth = 100;            // of blocks, expressions, macro calls and printed values
constexpr int64_t kMaxWork = 20'000'000;  // steps of one rendering: nodes, items and bytes / 16
constexpr size_t kWorkOfItem = 16;        // steps for each item of a new list, because it needs memory
constexpr size_t kMaxSource = 1 << 20;    // bytes of a template
constexpr size_t kMaxString = 16 << 20;   // bytes of one string value
constexpr size_t kMaxOutput = 64 << 20;   // bytes of the rendered text
constexpr size_t kMaxRepeated = 1 << 20;  // bytes of `string * count`

}  // namespace torchette::extension::llm::jinja
