// SPDX-License-Identifier: BSD-3-Clause
// Reads a payload (torchette/schema/xnnpack.fbs) and defines its values and nodes.
#include "torchette/backends/xnnpack/graph.h"

#include <algorithm>

#include "torchette/backends/xnnpack/builder.h"

// The library's tallest kernels have 16 rows, and read the scales of all where 2 are left for them.
static_assert(XNN_EXTRA_QUANTIZATION_PARAMS >= 14,
              "this XNNPACK computes wrong where weights have four bits: see build_library.sh");

namespace torchette {
namespace xnnpack {
bool is_plain(xnn_datatype type) {
  return type == xnn_datatype_fp32 || type == xnn_datatype_fp16 || type == xnn_datatype_qint8 ||
         type == xnn_datatype_quint8;
}

Error Builder::build() {
  TORCHETTE_TRY(payload_.open(processed_.data(), processed_.size(), named_));
  const Tables values = payload_.values(), nodes = payload_.nodes();
  const uint32_t externs = payload_.externs();
  known_.resize(values.size());
  if (taps_) TORCHETTE_TRY(find_taps(payload_.root()));
  TORCHETTE_XNN(xnn_create_subgraph(externs + static_cast<uint32_t>(out_.taps.size()), 0, &out_.subgraph));
  for (size_t i = 0; i < nodes.size(); ++i) find_weights(nodes[i]);
  for (size_t i = 0; i < values.size(); ++i) {
    TORCHETTE_TRY(value(values[i]));
    TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "value %zu of an XNNPACK payload is damaged",
                    i);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Error error = node(nodes[i]);
    // a node without a step would be believed
    if (error != Error::Ok || !payload_.ok() || out_.steps.size() != i + 1) {
      TORCHETTE_LOG(Error, "node %zu of an XNNPACK payload is refused", i);
      return error != Error::Ok ? error : Error::DelegateInvalidCompatibility;
    }
  }
  for (const Defined& it : known_) out_.sizes.push_back(it.dims);
  out_.matrices.erase(std::remove_if(out_.matrices.begin(), out_.matrices.end(),
                                     [this](const Matrix& it) { return uses_[it.rows].empty(); }),
                      out_.matrices.end());
  choose_in_place();
  for (size_t i = 0; i < known_.size(); ++i) {
    const Defined& it = known_[i];
    TORCHETTE_CHECK(it.ready || !it.present || !it.result, DelegateInvalidCompatibility,
                    "result %zu of an XNNPACK payload is never computed", i);
    // the library drops the node, and then stumbles over it
    TORCHETTE_CHECK(!it.made || it.read || it.result, DelegateInvalidCompatibility,
                    "value %zu of an XNNPACK payload is made for nobody", i);
  }
  // the arguments of the call: inputs, then outputs, each once
  std::vector<bool> seen(externs, false);
  for (const std::vector<External>* list : {&out_.inputs, &out_.outputs})
    for (const External& it : *list) {
      TORCHETTE_CHECK(!seen[it.id], DelegateInvalidCompatibility, "two values are argument %u", it.id);
      seen[it.id] = true;
    }
  TORCHETTE_CHECK(out_.inputs.size() + out_.outputs.size() == externs, DelegateInvalidCompatibility,
                  "an XNNPACK payload has %u arguments, %zu of them are defined", externs,
                  out_.inputs.size() + out_.outputs.size());
  finish_taps();
  return Error::Ok;
}

/// The values that are to be seen. A payload that does not list them, such as ExecuTorch's, shows none.
Error Builder::find_taps(const Table& root) {
  const auto handles = root.vector<uint32_t>(fb::XNNGraph::kTapHandles);
  const auto values = root.vector<uint32_t>(fb::XNNGraph::kTapValues);
  const auto layouts = root.vector<uint8_t>(fb::XNNGraph::kTapLayouts);
  TORCHETTE_CHECK(values.size() == handles.size() && layouts.size() == handles.size(),
                  DelegateInvalidCompatibility, "an XNNPACK payload names %zu results of %zu nodes",
                  values.size(), handles.size());
  for (size_t i = 0; i < handles.size(); ++i) {
    TORCHETTE_CHECK(values[i] < known_.size() && (layouts[i] == 0 || layouts[i] == 3 || layouts[i] == 4),
                    DelegateInvalidCompatibility, "value %u of an XNNPACK payload is no result", values[i]);
    known_[values[i]].tapped = true;
    out_.taps.push_back({handles[i], values[i], XNN_INVALID_VALUE_ID, layouts[i], ScalarType::Float});
  }
  return Error::Ok;
}

/// Keeps those that nodes make, or that are given.
void Builder::finish_taps() {
  std::vector<Tap> kept;
  for (Tap tap : out_.taps) {
    const Defined& it = known_[tap.value];
    const bool is_image = tap.layout == 0 || (it.dims.size() == 4 && (tap.layout == 4 || it.dims[1] == 1));
    if (!it.ready || it.constant || it.external == XNN_INVALID_VALUE_ID || !is_image) continue;
    tap.id = it.external;
    tap.type = argument_type(it.type);
    kept.push_back(tap);
  }
  out_.taps = std::move(kept);
}

void Builder::find_weights(const Table& entry) {
  const Table n = entry.table(fb::XNode::kXnodeUnion);
  uint32_t filter = XNN_INVALID_VALUE_ID;
  switch (entry.get<Node>(fb::XNode::kXnodeUnionType)) {
    case Node::XNNFullyConnected:
      filter = n.get<uint32_t>(fb::XNNFullyConnected::kFilterId);
      break;
    case Node::XNNConv2d:
    case Node::XNNDepthwiseConv2d:
    case Node::XNNConvTranspose2d:
      filter = n.get<uint32_t>(fb::XNNConv2d::kFilterId);
      break;
    default:
      break;
  }
  if (filter < known_.size()) known_[filter].is_packed = true;
}

Error Builder::find(const Table& table, uint16_t slot, uint32_t* id, const Defined** found, Reads reads,
                    bool optional) {
  const auto name = table.get<uint32_t>(slot);
  if (optional && name == XNN_INVALID_VALUE_ID) {
    *id = XNN_INVALID_VALUE_ID;
    if (found != nullptr) *found = nullptr;
    return Error::Ok;
  }
  TORCHETTE_CHECK(name < known_.size() && known_[name].ready, DelegateInvalidCompatibility,
                  "a node reads value %u, which is not there yet", name);
  const xnn_datatype type = known_[name].type;
  TORCHETTE_CHECK(
      reads == Reads::Weights || is_plain(type) || (reads == Reads::Rows && type == xnn_datatype_qdint8),
      DelegateInvalidCompatibility, "a node reads value %u, of a type that it cannot have", name);
  if (known_[name].buffer != SIZE_MAX) {
    Constant& constant = out_.constants[known_[name].buffer];
    if (reads == Reads::Weights) {
      ++constant.readers;
    } else {
      constant.stays = true;
    }
  }
  known_[name].read = true;
  TORCHETTE_TRY(define_gate(name));
  *id = known_[name].id;
  if (found != nullptr) *found = &known_[name];
  return Error::Ok;
}

Error Builder::make(const Table& table, uint16_t slot, uint32_t* id, bool rows) {
  const auto name = table.get<uint32_t>(slot);
  TORCHETTE_CHECK(name < known_.size() && known_[name].present && !known_[name].ready,
                  DelegateInvalidCompatibility, "a node writes value %u, which it cannot", name);
  TORCHETTE_CHECK(is_plain(known_[name].type) || (rows && known_[name].type == xnn_datatype_qdint8),
                  DelegateInvalidCompatibility, "a node writes value %u, of a type that it cannot have",
                  name);
  known_[name].ready = known_[name].made = true;
  *id = known_[name].id;
  return Error::Ok;
}

Error Builder::sizes(const Table& table, uint16_t slot, size_t expected, size_t (&out)[XNN_MAX_TENSOR_DIMS]) {
  const Span<const uint32_t> given = table.vector<uint32_t>(slot);
  TORCHETTE_CHECK(given.size() == expected && expected <= XNN_MAX_TENSOR_DIMS, DelegateInvalidCompatibility,
                  "a node has %zu numbers for %zu dimensions", given.size(), expected);
  for (size_t i = 0; i < given.size(); ++i) out[i] = given[i];
  return Error::Ok;
}

void Builder::step(Step::Kind kind, const Table& n, std::initializer_list<uint16_t> inputs, uint16_t output,
                   std::vector<uint64_t> numbers) {
  Step it{kind, {}, n.get<uint32_t>(output), std::move(numbers)};
  for (uint16_t slot : inputs)
    if (n.get<uint32_t>(slot) != XNN_INVALID_VALUE_ID) it.inputs.push_back(n.get<uint32_t>(slot));
  out_.steps.push_back(std::move(it));
}

void Builder::same(const Table& n, uint16_t input, uint16_t output) {
  step(Step::Kind::Same, n, {input}, output);
}

Error read_graph(const FreeableBuffer& processed, const NamedDataMap* named_data, bool taps, Graph* out) {
  return Builder(processed, named_data, taps, out).build();
}

}  // namespace xnnpack
}  // namespace torchette
