// SPDX-License-Identifier: BSD-3-Clause
// torchette.runtime._native.llm: grammars, their vocabularies and matchers, and the grammars of JSON schemas.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torchette/llm/grammar/grammar.h"
#include "torchette/llm/grammar/schema.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/llm_text.h"

namespace torchette::pybindings {
namespace {

using namespace extension::llm;

/// A grammar and the lock of its states, which matchers in different threads share.
struct SharedGrammar {
  std::unique_ptr<Grammar> grammar;
  std::mutex mutex;
};

/// The lines that an earlier call left in the log are not part of this call's error.
void clear_log() { take_log(); }

struct Matcher {
  std::shared_ptr<SharedGrammar> shared;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  std::shared_ptr<const Grammar::State> state;

  static Matcher start(std::shared_ptr<SharedGrammar> shared,
                       std::shared_ptr<const GrammarVocabulary> vocabulary) {
    clear_log();
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(shared->mutex);
    const Grammar::State* state = unwrap(shared->grammar->start());
    return {std::move(shared), std::move(vocabulary), Grammar::keep(state)};
  }

  /// Returns nothing if the grammar does not allow the bytes.
  std::optional<Matcher> after_bytes(const std::string& bytes) const {
    clear_log();
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(shared->mutex);
    const Grammar::State* next = unwrap(shared->grammar->advance(state.get(), bytes));
    if (next == nullptr) return std::nullopt;
    return Matcher{shared, vocabulary, Grammar::keep(next)};
  }

  std::optional<Matcher> after(size_t token) const {
    const std::vector<std::string>& tokens = vocabulary->tokens();
    if (token >= tokens.size() || tokens[token].empty()) return std::nullopt;
    return after_bytes(tokens[token]);
  }

  nb::ndarray<nb::numpy, bool, nb::ndim<1>> allowed() const {
    const size_t size = vocabulary->tokens().size();
    std::unique_ptr<bool[]> copy(new bool[size]);
    clear_log();
    {
      const nb::gil_scoped_release release;
      const std::lock_guard<std::mutex> lock(shared->mutex);
      const std::vector<bool>& mask = *unwrap(shared->grammar->mask(state.get(), *vocabulary));
      std::copy(mask.begin(), mask.end(), copy.get());
    }
    bool* const data = copy.release();
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<bool*>(p); });
    return nb::ndarray<nb::numpy, bool, nb::ndim<1>>(data, {size}, owner);
  }
};

std::vector<std::string> strings_of(const nb::sequence& tokens) {
  std::vector<std::string> strings;
  for (const nb::handle token : tokens) {
    const auto bytes = nb::cast<nb::bytes>(token);
    strings.emplace_back(bytes.c_str(), bytes.size());
  }
  return strings;
}

}  // namespace

void bind_llm_grammar(nb::module_& m) {
  m.def("grammar_of", [](const std::string& schema) { return called([&] { return grammar_of(schema); }); });
  m.def("grammar_of_pattern",
        [](const std::string& pattern) { return called([&] { return grammar_of_pattern(pattern); }); });
  nb::class_<GrammarVocabulary>(m, "GrammarVocabulary")
      .def("__init__", [](GrammarVocabulary* self, const nb::sequence& tokens) {
        std::vector<std::string> strings = strings_of(tokens);
        const nb::gil_scoped_release release;
        new (self) GrammarVocabulary(std::move(strings));
      });
  nb::class_<SharedGrammar>(m, "Grammar")
      .def("__init__",
           [](SharedGrammar* self, const std::string& text, const std::string& root) {
             new (self) SharedGrammar{called([&] { return Grammar::parse(text, root); }), {}};
           })
      .def_prop_ro("num_states", [](const SharedGrammar& self) { return self.grammar->num_states(); });
  nb::class_<Matcher>(m, "Matcher")
      .def_static("start", &Matcher::start)
      .def("after", &Matcher::after)
      .def("after_bytes",
           [](const Matcher& self, const nb::bytes& bytes) {
             return self.after_bytes({bytes.c_str(), bytes.size()});
           })
      .def("allowed", &Matcher::allowed)
      .def_prop_ro("accepts", [](const Matcher& self) { return Grammar::accepts(self.state.get()); })
      .def_prop_ro("is_done", [](const Matcher& self) { return Grammar::is_done(self.state.get()); });
}

}  // namespace torchette::pybindings
