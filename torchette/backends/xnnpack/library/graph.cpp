// SPDX-License-Identifier: BSD-3-Clause
// Defines the values of a payload, and computes their sizes.
#include "torchette/backends/xnnpack/library/graph.h"

#include <algorithm>
#include <cstring>

namespace torchette {
namespace xnnpack {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 30;  // of a value

uint64_t count_elements(const Dims& dims) {
  uint64_t count = 1;
  for (size_t d : dims) count = d != 0 && count > kMaxElements / d ? kMaxElements + 1 : count * d;
  return std::find(dims.begin(), dims.end(), 0u) != dims.end() ? 0 : count;
}

struct Type {
  fb::XNNDatatype stored;
  xnn_datatype type;
  size_t item;  // bytes of an element
  bool is_quantized;
  bool is_weight;       // only of filters and biases
  ScalarType argument;  // of an argument
};

/// The types that the library runs. Rows that are quantized at run time and 4-bit weights are not among them:
/// with processors that have GFNI the library reads scales after their end. Neither is float16: its clamp
/// turns NaN into a limit.
constexpr Type kTypes[] = {
    {fb::XNNDatatype::xnn_datatype_fp32, xnn_datatype_fp32, 4, false, false, ScalarType::Float},
    {fb::XNNDatatype::xnn_datatype_qint8, xnn_datatype_qint8, 1, true, false, ScalarType::Char},
    {fb::XNNDatatype::xnn_datatype_quint8, xnn_datatype_quint8, 1, true, false, ScalarType::Byte},
    {fb::XNNDatatype::xnn_datatype_qint32, xnn_datatype_qint32, 4, true, true, ScalarType::Int},
    {fb::XNNDatatype::xnn_datatype_qcint8, xnn_datatype_qcint8, 1, true, true, ScalarType::Char},
    {fb::XNNDatatype::xnn_datatype_qcint32, xnn_datatype_qcint32, 4, true, true, ScalarType::Int},
};

}  // namespace

Error LibraryGraph::read(const FreeableBuffer& processed, const NamedDataMap* named) {
  TORCHETTE_TRY(payload_.open(processed.data(), processed.size(), named));
  const Tables values = payload_.values(), nodes = payload_.nodes();
  const uint32_t externs = payload_.externs();
  values_.resize(values.size());
  reason_ = "the payload does not verify";
  TORCHETTE_TRY(checked(xnn_create_subgraph(externs, 0, &subgraph_)));
  for (size_t i = 0; i < nodes.size(); ++i) find_packed(nodes[i]);
  for (size_t i = 0; i < values.size(); ++i) {
    TORCHETTE_TRY(read_value(values[i]));
    if (!payload_.ok()) return Error::NotSupported;
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    reason_ = "node " + std::to_string(i);
    const Error error = read_node(nodes[i]);
    if (error != Error::Ok) return error;
    if (!payload_.ok() || steps_.size() != i + 1) return Error::NotSupported;
  }
  reason_ = "a value is not computed or not read";
  std::vector<bool> seen(externs, false);
  for (const std::vector<External>* list : {&inputs_, &outputs_})
    for (const External& it : *list) {
      if (seen[it.id]) return Error::NotSupported;
      seen[it.id] = true;
    }
  if (inputs_.size() + outputs_.size() != externs) return Error::NotSupported;
  for (const External& it : inputs_)
    if (it.id >= inputs_.size()) return Error::NotSupported;  // an output before an input
  for (const Value& it : values_) {
    if (it.is_result && !it.is_ready) return Error::NotSupported;
    // the library removes such a node from its list, but still prepares it
    if (it.is_made && !it.is_read && !it.is_result) return Error::NotSupported;
  }
  reason_ = "the sizes of a node do not fit";
  std::vector<Dims> sizes = this->sizes();
  if (!find_sizes(&sizes)) return Error::NotSupported;
  reason_.clear();
  return Error::Ok;
}

void LibraryGraph::release_subgraph() {
  if (subgraph_ != nullptr) xnn_delete_subgraph(subgraph_);
  subgraph_ = nullptr;
  buffers_.clear();
}

std::vector<Dims> LibraryGraph::sizes() const {
  std::vector<Dims> sizes;
  for (const Value& it : values_) sizes.push_back(it.dims);
  return sizes;
}

bool LibraryGraph::find_sizes(std::vector<Dims>* sizes) const {
  for (const Step& step : steps_) {
    const Dims& bound = values_[step.output].dims;
    Dims out = (*sizes)[step.input];
    if (!step.sizes(*sizes, &out) || out.size() != bound.size() ||
        count_elements(out) > std::min(count_elements(bound), kMaxElements))
      return false;
    (*sizes)[step.output] = std::move(out);
  }
  return true;
}

Error LibraryGraph::checked(xnn_status status) {
  return status == xnn_status_success ? Error::Ok : Error::NotSupported;
}

/// Filters and biases of layers.
void LibraryGraph::find_packed(const Table& entry) {
  const Table n = entry.table(fb::XNode::kXnodeUnion);
  const auto identifier = [&](uint32_t name) {
    if (name < values_.size()) values_[name].is_packed = true;
  };
  const auto kind = entry.get<Node>(fb::XNode::kXnodeUnionType);
  if (kind == Node::XNNFullyConnected) {
    identifier(n.get<uint32_t>(fb::XNNFullyConnected::kFilterId));
    identifier(n.get<uint32_t>(fb::XNNFullyConnected::kBiasId));
  } else if (kind == Node::XNNConv2d || kind == Node::XNNDepthwiseConv2d ||
             kind == Node::XNNConvTranspose2d) {
    identifier(n.get<uint32_t>(fb::XNNConv2d::kFilterId));
    identifier(n.get<uint32_t>(fb::XNNConv2d::kBiasId));
  }
}

/// Finds the bytes of a constant. The library reads a few bytes after a constant that is not packed.
Error LibraryGraph::constant(uint32_t index, size_t size, size_t item, bool is_packed, const void** data) {
  FreeableBuffer buffer;
  Span<const char> key;
  TORCHETTE_TRY(payload_.constant(index, size, data, &buffer, &key));
  if (reinterpret_cast<uintptr_t>(*data) % item != 0) return Error::NotSupported;
  if (is_packed) {
    buffers_.push_back(std::move(buffer));
  } else {
    std::vector<char>& copy = copies_.emplace_back(size + XNN_EXTRA_BYTES);
    if (size != 0) memcpy(copy.data(), *data, size);
    *data = copy.data();
  }
  return Error::Ok;
}

Error LibraryGraph::read_value(const Table& entry) {
  ValueRecord record(entry);
  TORCHETTE_TRY(payload_.read_value(entry, &record));
  Value& it = values_[record.id];
  if (it.is_present) return Error::NotSupported;
  const Type* const type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& row) {
    return row.stored == record.type && row.is_quantized == record.quantized;
  });
  if (type == std::end(kTypes) || (type->is_weight && !it.is_packed)) {
    reason_ =
        "value " + std::to_string(record.id) + " has type " + std::to_string(static_cast<int>(record.type));
    return Error::NotSupported;
  }
  it.type = type->type;
  it.dims.assign(record.dims.begin(), record.dims.end());
  it.is_present = true;
  it.is_constant = record.constant != 0;
  it.is_ready = it.is_constant || (record.is_argument() && !record.is_result);
  it.is_result = record.is_argument() && record.is_result;
  // a layer with computed weights packs them at each execution
  if (it.is_packed && !it.is_constant) return Error::NotSupported;
  if (count_elements(it.dims) > kMaxElements) return Error::NotSupported;
  if (it.is_constant)
    TORCHETTE_TRY(constant(record.constant, static_cast<size_t>(record.count) * type->item, type->item,
                           it.is_packed, &it.data));
  if (record.is_argument())
    (record.is_result ? outputs_ : inputs_).push_back({record.argument, record.id, type->argument});
  const uint32_t flag = record.is_result ? XNN_VALUE_FLAG_EXTERNAL_OUTPUT : XNN_VALUE_FLAG_EXTERNAL_INPUT;
  return define_value(record, record.is_argument() ? flag : 0, &it);
}

Error LibraryGraph::define_value(const ValueRecord& record, uint32_t flags, Value* it) {
  const size_t rank = it->dims.size();
  // The library never plans less memory than for the sizes of the definition, and a payload has maximum
  // sizes. Each value that is computed has its sizes of a call before the first plan.
  const Dims least(rank, 1);
  const size_t* const dims = it->is_constant ? it->dims.data() : least.data();
  const uint32_t external = record.is_argument() ? record.argument : XNN_INVALID_VALUE_ID;
  if (!record.quantized)
    return checked(
        xnn_define_tensor_value(subgraph_, it->type, rank, dims, it->data, external, flags, &it->id));
  const Table q = record.outer.table(fb::XNNQuantizedTensorValue::kQuantParams);
  const auto quantization =
      record.outer.get<fb::XNNQuantParams>(fb::XNNQuantizedTensorValue::kQuantParamsType);
  if (quantization == fb::XNNQuantParams::PerTensorQuant)
    return checked(xnn_define_quantized_tensor_value(
        subgraph_, it->type, q.get<int32_t>(fb::PerTensorQuant::kZeroPoint),
        q.get<float>(fb::PerTensorQuant::kScale), rank, dims, it->data, external, flags, &it->id));
  using C = fb::PerChannelQuant;
  const auto dim = static_cast<uint32_t>(q.get<int32_t>(C::kChannelDim));
  if (quantization != fb::XNNQuantParams::PerChannelQuant || dim >= rank) return Error::NotSupported;
  it->channel_dim = dim;
  const Span<const float> given = q.vector<float>(C::kScale);
  const void* scales = given.data();
  if (given.size() == 0)
    TORCHETTE_TRY(constant(q.get<uint32_t>(C::kScaleBufferIdx), it->dims[dim] * sizeof(float), sizeof(float),
                           true, &scales));
  else if (given.size() < it->dims[dim])
    return Error::NotSupported;
  return checked(xnn_define_channelwise_quantized_tensor_value(subgraph_, it->type,
                                                               static_cast<const float*>(scales), rank, dim,
                                                               dims, it->data, external, flags, &it->id));
}

Error LibraryGraph::input(const Table& n, uint16_t slot, Operand* out) {
  const auto name = n.get<uint32_t>(slot);
  if (name >= values_.size() || !values_[name].is_ready || values_[name].is_packed)
    return Error::NotSupported;
  values_[name].is_read = true;
  *out = {name, values_[name].id, &values_[name]};
  return Error::Ok;
}

Error LibraryGraph::weight(const Table& n, uint16_t slot, bool is_optional, Operand* out) {
  const auto name = n.get<uint32_t>(slot);
  *out = {};
  if (is_optional && name == kNoValue) return Error::Ok;
  if (name >= values_.size() || !values_[name].is_constant) return Error::NotSupported;
  *out = {name, values_[name].id, &values_[name]};
  return Error::Ok;
}

Error LibraryGraph::output(const Table& n, uint16_t slot, Operand* out) {
  const auto name = n.get<uint32_t>(slot);
  if (name >= values_.size() || !values_[name].is_present || values_[name].is_ready)
    return Error::NotSupported;
  values_[name].is_ready = values_[name].is_made = true;
  *out = {name, values_[name].id, &values_[name]};
  return Error::Ok;
}

Error LibraryGraph::operands(const Table& n, uint16_t from, uint16_t to, Operand* in, Operand* out) {
  TORCHETTE_TRY(input(n, from, in));
  return output(n, to, out);
}

void LibraryGraph::step(const Operand& in, const Operand& out, SizesFunction sizes) {
  steps_.push_back({in.name, out.name, std::move(sizes)});
}

}  // namespace xnnpack
}  // namespace torchette
