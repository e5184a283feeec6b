// SPDX-License-Identifier: BSD-3-Clause
// GenerationConfig: the options of an answer. IRunner: the interface of programs that generate text. Names
// and defaults are those of ExecuTorch.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "torchette/llm/engine/stats.h"
#include "torchette/llm/engine/token_constraints.h"
#include "torchette/runtime/error.h"

namespace torchette::extension::llm {

/// The types of the members of GenerationConfig, by the types of options.def.
namespace option_type {
using Flag = bool;
using Integer = int32_t;
using Seed = uint64_t;
using Number = float;
using Text = std::string;
using Texts = std::vector<std::string>;
using Schema = std::string;
using Biases = std::vector<std::pair<uint64_t, float>>;
}  // namespace option_type

/// The options of an answer. options.def describes each member.
struct GenerationConfig {
#define TORCHETTE_OPTION(group, type, name, value, ...) option_type::type name = value;
#include "torchette/llm/engine/options.def"

  TokenConstraints constraints;  // of generation_config.json; TextLLMRunner sets them for every answer

  /// Returns the maximum of new tokens if `occupied` positions of the context are used.
  int32_t resolve_max_new_tokens(int32_t max_context_len, int32_t occupied) const {
    int32_t room = (seq_len < 0 || seq_len > max_context_len ? max_context_len : seq_len) - occupied;
    if (max_new_tokens >= 0 && max_new_tokens < room) room = max_new_tokens;
    return room > 0 ? room : 0;
  }
};

class IRunner {
 public:
  using TokenCallback = std::function<void(const std::string&)>;
  using StatsCallback = std::function<void(const Stats&)>;

  virtual ~IRunner() = default;
  virtual bool is_loaded() const = 0;
  virtual Error load() = 0;
  virtual Error generate(const std::string& prompt, const GenerationConfig& config,
                         TokenCallback token_callback = {}, StatsCallback stats_callback = {}) = 0;
  virtual void stop() = 0;
  virtual void reset() = 0;
};

}  // namespace torchette::extension::llm
