// SPDX-License-Identifier: BSD-3-Clause
// torchette.runtime._native.llm: tokenizers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/llm/text/tokenizer.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"

namespace torchette::pybindings {
namespace {

using namespace extension::llm;

// The library has no RTTI, which nanobind requires of a class with virtual functions.
struct TokenizerHolder {
  std::shared_ptr<const Tokenizer> tokenizer;
};

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

}  // namespace

void bind_llm_text(nb::module_& m) {
  nb::class_<TokenizerHolder>(m, "Tokenizer")
      .def("__init__",
           [](TokenizerHolder* self, const nb::bytes& data) {
             new (self) TokenizerHolder{unwrap(make_tokenizer(view_of(data)))};
           })
      .def("encode",
           [](const TokenizerHolder& self, const std::string& text, bool add_special_tokens) {
             return unwrap(add_special_tokens ? self.tokenizer->encode_with_special_tokens(text)
                                              : self.tokenizer->encode(text));
           })
      .def("bytes_of", [](const TokenizerHolder& self, uint64_t token) {
        const std::string bytes = self.tokenizer->bytes_of(token);
        return nb::bytes(bytes.data(), bytes.size());
      });
}

}  // namespace torchette::pybindings
