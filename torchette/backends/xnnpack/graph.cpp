// SPDX-License-Identifier: BSD-3-Clause
// Reads a payload (torchette/schema/xnnpack.fbs) and defines its values and nodes.
#include "torchette/backends/xnnpack/graph.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>

#include "torchette/runtime/dtype.h"
#include "torchette/runtime/flat.h"
#include "torchette/schema/xnnpack.h"

// Of library/additions.h; not in a library that somebody built in another way.
extern "C" {
bool xnn_has_silu() __attribute__((weak));
xnn_status xnn_define_silu(xnn_subgraph_t, uint32_t input_id, uint32_t output_id) __attribute__((weak));
bool xnn_multiplies_rows() __attribute__((weak));
}

// The library's tallest kernels have 16 rows, and read the scales of all where 2 are left for them.
static_assert(XNN_EXTRA_QUANTIZATION_PARAMS >= 14,
              "this XNNPACK computes wrong where weights have four bits: see build_library.sh");

namespace torchette {
namespace xnnpack {
namespace {

namespace fb = schema::xnnpack;
using flat::Reader;
using flat::Table;
using flat::Tables;
using Node = fb::XNodeUnion;

constexpr char kHeaderMagic[] = {'X', 'H', '0', '0'};
constexpr size_t kHeaderSize = 30;
constexpr uint64_t kNamed = UINT64_MAX;  // the offset of a constant that stands elsewhere
// Of a mapped file one page that is read may bring so many bytes into memory.
constexpr size_t kRegion = size_t{2} << 20;
// Named data of up to so many bytes that nodes read when the graph runs are copied.
constexpr size_t kCopied = kRegion / 2;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

#define TORCHETTE_XNN(call)                                                            \
  do {                                                                                 \
    const xnn_status status = (call);                                                  \
    TORCHETTE_CHECK(status == xnn_status_success, DelegateInvalidCompatibility,        \
                    "XNNPACK refuses %s: status %d", #call, static_cast<int>(status)); \
  } while (0)

struct Defined {
  bool present = false;
  bool constant = false;
  bool result = false;     // of the graph
  bool is_packed = false;  // weights
  bool read = false;       // by a node
  bool made = false;       // by a node
  bool ready = false;      // has its elements before the next node runs
  xnn_datatype type = xnn_datatype_invalid;
  size_t channel_dim = 0;  // of scales, where there is one for each channel
  size_t inner_dims = 0;   // quantized together, of a value that is quantized when the graph runs
  uint32_t id = XNN_INVALID_VALUE_ID;
  std::vector<size_t> dims;
  const void* data = nullptr;  // of a constant
  size_t buffer = SIZE_MAX;    // its place among the named data
};

bool is_aligned(const void* data, size_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

size_t product(const std::vector<size_t>& dims) {
  size_t n = 1;
  for (size_t d : dims) n *= d;  // bounded by the caller
  return n;
}

class Builder {
 public:
  Builder(const FreeableBuffer& processed, const NamedDataMap* named, Graph* graph)
      : bytes_(static_cast<const uint8_t*>(processed.data())),
        size_(processed.size()),
        named_(named),
        out_(*graph) {}

  Error build() {
    size_t at = 0, size = size_;
    TORCHETTE_CHECK(size_ >= 8, DelegateInvalidCompatibility, "an XNNPACK payload has %zu bytes", size_);
    if (memcmp(bytes_ + 4, kHeaderMagic, 4) == 0) {
      TORCHETTE_CHECK(size_ >= kHeaderSize && Reader::load<uint16_t>(bytes_ + 8) >= kHeaderSize,
                      DelegateInvalidCompatibility, "the header of an XNNPACK payload is cut short");
      at = Reader::load<uint32_t>(bytes_ + 10);
      size = Reader::load<uint32_t>(bytes_ + 14);
      const size_t data_at = Reader::load<uint32_t>(bytes_ + 18);
      const uint64_t data_size = Reader::load<uint64_t>(bytes_ + 22);
      TORCHETTE_CHECK(
          at <= size_ && size <= size_ - at && size >= 8 && data_at <= size_ && data_size <= size_ - data_at,
          DelegateInvalidCompatibility, "an XNNPACK payload of %zu bytes is cut short", size_);
      data_ = bytes_ + data_at;
      data_size_ = static_cast<size_t>(data_size);
    }
    // the last letter counts the releases of the format; two of them read alike
    const auto* mark = reinterpret_cast<const char*>(bytes_ + at + 4);
    TORCHETTE_CHECK(memcmp(mark, fb::kFileIdentifier, 3) == 0 && (mark[3] == '0' || mark[3] == '1'),
                    DelegateInvalidCompatibility,
                    "these are no bytes of XNNPACK's of this version: they lack the mark %s",
                    fb::kFileIdentifier);
    Reader reader(bytes_ + at, size);
    const Table root = Table::root(&reader);
    constants_ = root.tables(fb::XNNGraph::kConstantData);
    buffers_ = root.tables(fb::XNNGraph::kConstantBuffer);
    const Tables values = root.tables(fb::XNNGraph::kXvalues), nodes = root.tables(fb::XNNGraph::kXnodes);
    const uint32_t externs = root.get<uint32_t>(fb::XNNGraph::kNumExterns);
    TORCHETTE_CHECK(reader.ok() && root.present() && externs <= values.size(), DelegateInvalidCompatibility,
                    "an XNNPACK payload is damaged");
    TORCHETTE_XNN(xnn_create_subgraph(externs, 0, &out_.subgraph));
    known_.resize(values.size());
    externs_ = externs;
    for (size_t i = 0; i < nodes.size(); ++i) find_weights(nodes[i]);
    for (size_t i = 0; i < values.size(); ++i) {
      TORCHETTE_TRY(value(values[i]));
      TORCHETTE_CHECK(reader.ok(), DelegateInvalidCompatibility, "value %zu of an XNNPACK payload is damaged",
                      i);
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      out_.origins.push_back(origin(nodes[i]));
      const Error error = node(nodes[i]);
      // a node without a step would be believed
      if (error != Error::Ok || !reader.ok() || out_.steps.size() != i + 1) {
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
    return Error::Ok;
  }

 private:
  static constexpr const char* kUnary = "Unary Elementwise";
  static constexpr const char* kLinear = "linear,";

  static Origin origin(const Table& entry) {
    const auto handle = entry.get<uint32_t>(fb::XNode::kDebugHandle);
    switch (entry.get<Node>(fb::XNode::kXnodeUnionType)) {
      case Node::XNNClamp:
        return {handle, kUnary};
      case Node::XNNCopy:
        return {handle, "Copy"};
      case Node::XNNStaticConstantPad:
        return {handle, "Constant Pad"};
      default:
        return {handle, nullptr};
    }
  }

  static xnn_datatype library_type(fb::XNNDatatype type) {
    switch (type) {
      case fb::XNNDatatype::xnn_datatype_fp32:
        return xnn_datatype_fp32;
      case fb::XNNDatatype::xnn_datatype_fp16:
        return xnn_datatype_fp16;
      case fb::XNNDatatype::xnn_datatype_qint8:
        return xnn_datatype_qint8;
      case fb::XNNDatatype::xnn_datatype_quint8:
        return xnn_datatype_quint8;
      case fb::XNNDatatype::xnn_datatype_qint32:
        return xnn_datatype_qint32;
      case fb::XNNDatatype::xnn_datatype_qcint8:
        return xnn_datatype_qcint8;
      case fb::XNNDatatype::xnn_datatype_qcint32:
        return xnn_datatype_qcint32;
      case fb::XNNDatatype::xnn_datatype_qcint4:
        return xnn_datatype_qcint4;
      case fb::XNNDatatype::xnn_datatype_qdint8:
        return xnn_datatype_qdint8;
      case fb::XNNDatatype::xnn_datatype_qbint4:
        return xnn_datatype_qbint4;
      default:
        return xnn_datatype_invalid;
    }
  }
  static size_t bits(xnn_datatype type) {
    switch (type) {
      case xnn_datatype_fp16:
        return 16;
      case xnn_datatype_fp32:
      case xnn_datatype_qint32:
      case xnn_datatype_qcint32:
        return 32;
      case xnn_datatype_qcint4:
      case xnn_datatype_qbint4:
        return 4;
      default:
        return 8;
    }
  }
  static ScalarType argument_type(xnn_datatype type) {
    switch (type) {
      case xnn_datatype_fp16:
        return ScalarType::Half;
      case xnn_datatype_qint8:
        return ScalarType::Char;
      case xnn_datatype_quint8:
        return ScalarType::Byte;
      default:
        return ScalarType::Float;
    }
  }

  /// The bytes of constant `index`, at least `size` of them.
  Error constant(uint32_t index, size_t size, const void** data, bool is_packed = false) {
    key_.clear();
    out_.constant_bytes += size;
    if (buffers_.size() != 0) {
      const Span<const uint8_t> bytes = index < buffers_.size()
                                            ? buffers_[index].vector<uint8_t>(fb::Buffer::kStorage)
                                            : Span<const uint8_t>();
      TORCHETTE_CHECK(bytes.size() >= size, DelegateInvalidCompatibility, "constant %u has %zu bytes of %zu",
                      index, bytes.size(), size);
      *data = bytes.data();
      out_.needs_bytes = true;
      return Error::Ok;
    }
    TORCHETTE_CHECK(index < constants_.size(), DelegateInvalidCompatibility,
                    "constant %u is named, there are %zu", index, constants_.size());
    const Table record = constants_[index];
    const uint64_t offset = record.get<uint64_t>(fb::ConstantDataOffset::kOffset);
    const Span<const char> key = record.string(fb::ConstantDataOffset::kNamedKey);
    if (offset != kNamed) {
      TORCHETTE_CHECK(key.empty() && offset <= data_size_ && size <= data_size_ - offset,
                      DelegateInvalidCompatibility, "constant %u is not inside of the payload", index);
      *data = data_ + offset;
      out_.needs_bytes = true;
      return Error::Ok;
    }
    key_.assign(key.data(), key.size());
    TORCHETTE_CHECK(named_ != nullptr && !key.empty(), DelegateInvalidCompatibility,
                    "constant %u has no data", index);
    Result<FreeableBuffer> buffer = named_->get_data(key.data());
    if (!buffer.ok()) return buffer.error();
    TORCHETTE_CHECK(buffer->size() >= size, DelegateInvalidCompatibility, "%s has %zu bytes, %zu are needed",
                    key.data(), buffer->size(), size);
    if (!is_packed && size <= kCopied) {
      std::vector<char>& copy = out_.copies.emplace_back(size + XNN_EXTRA_BYTES);
      memcpy(copy.data(), buffer->data(), size);
      *data = copy.data();
      return Error::Ok;
    }
    *data = buffer->data();
    out_.constants.push_back({std::move(*buffer)});
    return Error::Ok;
  }

  Error scales(const Table& quant, uint16_t inline_slot, uint16_t index_slot, size_t item, size_t count,
               const void** data) {
    const Span<const float> given = quant.vector<float>(inline_slot);
    if (given.size() != 0 && item == sizeof(float)) {
      TORCHETTE_CHECK(given.size() >= count, DelegateInvalidCompatibility, "%zu scales of %zu", given.size(),
                      count);
      *data = given.data();
      out_.needs_bytes = true;
      return Error::Ok;
    }
    TORCHETTE_TRY(constant(quant.get<uint32_t>(index_slot), count * item, data));
    TORCHETTE_CHECK(is_aligned(*data, item), DelegateInvalidCompatibility, "scales lie across each other");
    return Error::Ok;
  }

  void find_weights(const Table& entry) {
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

  Error value(const Table& entry) {
    const auto kind = entry.get<fb::XValueUnion>(fb::XValue::kXvalueUnionType);
    const Table outer = entry.table(fb::XValue::kXvalueUnion);
    const bool quantized = kind == fb::XValueUnion::XNNQuantizedTensorValue;
    TORCHETTE_CHECK(quantized || kind == fb::XValueUnion::XNNTensorValue, NotSupported,
                    "a value of an unknown kind");
    const Table t = quantized ? outer.table(fb::XNNQuantizedTensorValue::kTensorValue) : outer;
    using T = fb::XNNTensorValue;
    const auto stored = t.get<fb::XNNDatatype>(T::kDatatype);
    const xnn_datatype type = library_type(stored);
    const Span<const uint32_t> given = t.vector<uint32_t>(T::kDims);
    const uint32_t id_out = t.get<uint32_t>(T::kIdOut), external = t.get<uint32_t>(T::kExternalId);
    const uint32_t flags = t.get<uint32_t>(T::kFlags), buffer = t.get<uint32_t>(T::kConstantBufferIdx);
    TORCHETTE_CHECK(type != xnn_datatype_invalid, NotSupported,
                    "value %u of XNNPACK's graph has type number %d, which this build does not have", id_out,
                    static_cast<int>(stored));
    TORCHETTE_CHECK(given.size() <= XNN_MAX_TENSOR_DIMS && given.size() == t.get<uint32_t>(T::kNumDims),
                    DelegateInvalidCompatibility, "a value of %zu dimensions", given.size());
    TORCHETTE_CHECK(id_out < known_.size() && !known_[id_out].present, DelegateInvalidCompatibility,
                    "value %u is defined twice, or is not there", id_out);
    Defined& it = known_[id_out];
    it.dims.assign(given.begin(), given.end());
    it.type = type;
    uint64_t count = 1;
    for (size_t d : it.dims) {
      count = d != 0 && count > (uint64_t{1} << 40) / d ? uint64_t{1} << 41 : count * d;
    }
    TORCHETTE_CHECK(count <= (uint64_t{1} << 40), DelegateInvalidCompatibility, "value %u is too large",
                    id_out);
    const void* data = nullptr;
    if (buffer != 0) {
      const size_t last = it.dims.empty() ? 1 : it.dims.back();
      const uint64_t rows = last == 0 ? 0 : count / last;
      // four bits an element, each row padded to whole bytes
      const uint64_t nbytes = bits(type) == 4 ? rows * ((last + 1) / 2) : count * bits(type) / 8;
      const size_t held = out_.constants.size();
      TORCHETTE_TRY(constant(buffer, static_cast<size_t>(nbytes), &data, it.is_packed));
      TORCHETTE_CHECK(is_aligned(data, std::max<size_t>(bits(type) / 8, 1)), DelegateInvalidCompatibility,
                      "the elements of value %u lie across each other", id_out);
      it.constant = true;
      it.data = data;
      if (out_.constants.size() != held) it.buffer = held;
    }
    std::string identity = key_;
    if (it.constant && !identity.empty()) {
      identity += '/' + std::to_string(static_cast<int>(type));
      for (size_t d : it.dims) identity += ',' + std::to_string(d);
    }
    const bool is_external = external != XNN_INVALID_VALUE_ID;
    TORCHETTE_CHECK(!is_external || (external < externs_ && (flags == 1 || flags == 2) && !it.constant),
                    DelegateInvalidCompatibility, "value %u is argument %u of %u", id_out, external,
                    externs_);
    const uint32_t kept_flags = is_external ? flags : 0;
    const size_t* dims = it.dims.data();
    const size_t rank = it.dims.size();
    xnn_subgraph_t g = out_.subgraph;
    key_.clear();
    if (!quantized) {
      TORCHETTE_XNN(xnn_define_tensor_value(g, type, rank, dims, data, external, kept_flags, &it.id));
    } else {
      const Table q = outer.table(fb::XNNQuantizedTensorValue::kQuantParams);
      switch (outer.get<fb::XNNQuantParams>(fb::XNNQuantizedTensorValue::kQuantParamsType)) {
        case fb::XNNQuantParams::PerTensorQuant:
          TORCHETTE_XNN(xnn_define_quantized_tensor_value(
              g, type, q.get<int32_t>(fb::PerTensorQuant::kZeroPoint),
              q.get<float>(fb::PerTensorQuant::kScale), rank, dims, data, external, kept_flags, &it.id));
          break;
        case fb::XNNQuantParams::PerChannelQuant: {
          const auto dim = q.get<int32_t>(fb::PerChannelQuant::kChannelDim);
          TORCHETTE_CHECK(dim >= 0 && static_cast<size_t>(dim) < rank, DelegateInvalidCompatibility,
                          "channels in dimension %d", static_cast<int>(dim));
          it.channel_dim = static_cast<size_t>(dim);
          const void* scale = nullptr;
          TORCHETTE_TRY(scales(q, fb::PerChannelQuant::kScale, fb::PerChannelQuant::kScaleBufferIdx,
                               sizeof(float), it.dims[static_cast<size_t>(dim)], &scale));
          // two elements of four bits share a byte, with 8 added to each
          const int32_t zero = type == xnn_datatype_qcint4 ? 8 : 0;
          TORCHETTE_XNN(xnn_define_channelwise_quantized_tensor_value_v2(
              g, type, zero, static_cast<const float*>(scale), rank, static_cast<size_t>(dim), dims, data,
              external, kept_flags, &it.id));
          break;
        }
        case fb::XNNQuantParams::PerChannelGroupQuant: {
          const auto dim = q.get<int32_t>(fb::PerChannelGroupQuant::kChannelDim);
          const auto group = q.get<int32_t>(fb::PerChannelGroupQuant::kGroupSize);
          TORCHETTE_CHECK(rank == 2 && (dim == 0 || dim == 1) && group > 0 &&
                              it.dims[static_cast<size_t>(1 - dim)] % static_cast<size_t>(group) == 0,
                          DelegateInvalidCompatibility, "groups of %d in dimension %d",
                          static_cast<int>(group), static_cast<int>(dim));
          it.channel_dim = static_cast<size_t>(dim);
          const size_t channels = it.dims[static_cast<size_t>(dim)];
          const size_t groups = it.dims[static_cast<size_t>(1 - dim)] / static_cast<size_t>(group);
          const void* scale = nullptr;
          TORCHETTE_TRY(scales(q, fb::PerChannelGroupQuant::kScale, fb::PerChannelGroupQuant::kScaleBufferIdx,
                               sizeof(uint16_t), channels * groups, &scale));
          TORCHETTE_XNN(xnn_define_blockwise_quantized_tensor_value(
              g, type, 8, static_cast<const uint16_t*>(scale), rank, static_cast<size_t>(dim),
              static_cast<size_t>(group), dims, data, external, kept_flags, &it.id));
          break;
        }
        case fb::XNNQuantParams::PerTokenDynamicQuant: {
          const auto inner = q.get<int32_t>(fb::PerTokenDynamicQuant::kNumNonbatchDims);
          it.inner_dims = static_cast<size_t>(inner);
          TORCHETTE_CHECK(inner > 0 && static_cast<size_t>(inner) <= rank && data == nullptr && !is_external,
                          DelegateInvalidCompatibility, "a value quantized over %d dimensions",
                          static_cast<int>(inner));
          TORCHETTE_XNN(xnn_define_dynamically_quantized_tensor_value(
              g, type, rank, static_cast<size_t>(inner), dims, external, kept_flags, &it.id));
          break;
        }
        default:
          TORCHETTE_LOG(Error, "a value that is quantized in an unknown way");
          return Error::NotSupported;
      }
    }
    if (it.constant) {
      // Those with scales of their own in the payload are not told apart.
      if (quantized && key_.empty()) identity.clear();
      if (!identity.empty()) identity += '/' + key_;
      const auto [known, is_new] = out_.identities.emplace(data, identity);
      if (!is_new && known->second != identity) known->second.clear();
    }
    it.present = true;
    it.ready = it.constant || (is_external && flags == 1);
    it.result = is_external && flags == 2;
    if (is_external)
      (flags == 1 ? out_.inputs : out_.outputs).push_back({external, id_out, argument_type(type), it.dims});
    return Error::Ok;
  }

  /// What a node may read: numbers that stand for themselves or have one scale; those and rows that are
  /// quantized when the graph runs; weights, of any type.
  enum class Reads { Plain, Rows, Weights };

  /// The library's id of a value that a node reads; null in `found` where the node may go without it.
  Error find(const Table& table, uint16_t slot, uint32_t* id, const Defined** found = nullptr,
             Reads reads = Reads::Plain, bool optional = false) {
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

  /// The library's convolutions in half precision take weights in float32 only, and pack them as halves.
  Error widen(const Defined& weights, uint32_t* id) {
    if (weights.type != xnn_datatype_fp16) return Error::Ok;
    std::vector<float> wide(product(weights.dims));
    const auto* halves = static_cast<const Half*>(weights.data);
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(halves[i]);
    out_.widened.push_back(std::move(wide));
    TORCHETTE_XNN(xnn_define_tensor_value(out_.subgraph, xnn_datatype_fp32, weights.dims.size(),
                                          weights.dims.data(), out_.widened.back().data(),
                                          XNN_INVALID_VALUE_ID, 0, id));
    return Error::Ok;
  }

  /// How a node packs its weights goes into what tells them apart; two nodes that differ in it share nothing.
  void packed_as(const Defined& weights, std::string how) {
    how += '/' + std::to_string(static_cast<int>(weights.type));
    for (size_t d : weights.dims) how += ',' + std::to_string(d);
    const auto [use, is_new] = uses_.emplace(weights.data, how);
    if (use->second != how) use->second.clear();
    const auto known = out_.identities.find(weights.data);
    if (known == out_.identities.end() || known->second.empty()) return;
    if (is_new) known->second += '/' + how;
    if (use->second.empty()) known->second.clear();
  }

  /// Whether a node's output is a product in float32 with weights whose rows are outputs.
  static bool is_product(const Defined& source, const Defined& weights, const Defined* added) {
    for (const Defined* it : {&source, &weights, added})
      if (it != nullptr && it->type != xnn_datatype_fp32) return false;
    return weights.constant && (added == nullptr || added->constant);
  }

  /// Whether such a node reads its weights where they are: it has never more than one row of input.
  static bool has_one_row(const Defined& source, const Defined& weights, const Defined* added) {
    return xnn_multiplies_rows != nullptr && xnn_multiplies_rows() && is_product(source, weights, added) &&
           weights.buffer != SIZE_MAX && weights.dims[0] != 0 &&
           product(source.dims) == product(weights.dims) / weights.dims[0];
  }

  void multiplies(const Defined& source, const Defined& weights, const Defined* added, bool in_place) {
    if (weights.dims[0] == 0 || !is_product(source, weights, added)) return;
    const size_t count = product(weights.dims);
    out_.matrices.push_back({static_cast<const float*>(weights.data),
                             added == nullptr ? nullptr : static_cast<const float*>(added->data),
                             weights.dims[0], count / weights.dims[0],
                             in_place ? &out_.constants[weights.buffer].bytes : nullptr});
  }

  /// Lets weights be packed that would keep more of a file in memory than they are.
  void choose_in_place() {
    std::map<uintptr_t, size_t> read;  // bytes of each region
    const auto for_regions = [](const Matrix& it, const auto& visit) {
      auto at = reinterpret_cast<uintptr_t>(it.rows);
      const uintptr_t end = at + it.outputs * it.inputs * sizeof(float);
      for (uintptr_t next; at < end; at = next) {
        next = std::min(end, (at / kRegion + 1) * kRegion);
        visit(at / kRegion, next - at);
      }
    };
    for (const Matrix& it : out_.matrices)
      if (it.bytes != nullptr) for_regions(it, [&](uintptr_t region, size_t size) { read[region] += size; });
    for (Matrix& it : out_.matrices) {
      if (it.bytes == nullptr) continue;
      size_t used = 0, held = 0;
      for_regions(it, [&](uintptr_t region, size_t) { used += read[region], held += kRegion; });
      if (used < held / 2) {
        it.bytes = nullptr;
      } else {
        out_.constant_bytes -= it.outputs * it.inputs * sizeof(float);
      }
    }
  }

  /// The library's id of a value that a node writes: one that nobody wrote before.
  Error make(const Table& table, uint16_t slot, uint32_t* id, bool rows = false) {
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

  static bool is_plain(xnn_datatype type) {
    return type == xnn_datatype_fp32 || type == xnn_datatype_fp16 || type == xnn_datatype_qint8 ||
           type == xnn_datatype_quint8;
  }

  /// Whether the scales of weights and of what is added are those of the outputs, and rows are quantized over
  /// as many dimensions as the layer reads at once.
  static bool scales_fit(const Defined& source, const Defined& weights, const Defined* added, size_t outputs,
                         size_t inner_dims) {
    return (bits(weights.type) == 4 || has_channels(weights.type) ? weights.channel_dim == outputs : true) &&
           (added == nullptr || added->channel_dim == 0) &&
           (source.type != xnn_datatype_qdint8 || source.inner_dims == inner_dims);
  }
  static bool has_channels(xnn_datatype type) { return type == xnn_datatype_qcint8; }

  Error sizes(const Table& table, uint16_t slot, size_t expected, size_t (&out)[XNN_MAX_TENSOR_DIMS]) {
    const Span<const uint32_t> given = table.vector<uint32_t>(slot);
    TORCHETTE_CHECK(given.size() == expected && expected <= XNN_MAX_TENSOR_DIMS, DelegateInvalidCompatibility,
                    "a node has %zu numbers for %zu dimensions", given.size(), expected);
    for (size_t i = 0; i < given.size(); ++i) out[i] = given[i];
    return Error::Ok;
  }

  /// What the node does to sizes.
  void step(Step::Kind kind, const Table& n, std::initializer_list<uint16_t> inputs, uint16_t output,
            std::vector<uint64_t> numbers = {}) {
    Step it{kind, {}, n.get<uint32_t>(output), std::move(numbers)};
    for (uint16_t slot : inputs)
      if (n.get<uint32_t>(slot) != XNN_INVALID_VALUE_ID) it.inputs.push_back(n.get<uint32_t>(slot));
    out_.steps.push_back(std::move(it));
  }
  void same(const Table& n, uint16_t input = fb::XNNSigmoid::kInputId,
            uint16_t output = fb::XNNSigmoid::kOutputId) {
    step(Step::Kind::Same, n, {input}, output);
  }

  /// A sigmoid that nobody has read yet: x times sigmoid(x) is one operation.
  struct Gate {
    uint32_t source;  // as the payload calls it
    uint32_t in, out;
    Origin origin;
  };

  /// Has the sigmoid that makes this value computed, if it was put off.
  Error define_gate(uint32_t name) {
    const auto it = gates_.find(name);
    if (it == gates_.end()) return Error::Ok;
    const Gate gate = it->second;
    gates_.erase(it);
    TORCHETTE_XNN(xnn_define_unary(out_.subgraph, xnn_unary_sigmoid, nullptr, gate.in, gate.out, 0));
    out_.origins.insert(out_.origins.end() - 1, gate.origin);  // before the node that reads it
    return Error::Ok;
  }

  Error sigmoid(const Table& n) {
    using S = fb::XNNSigmoid;
    const auto source = n.get<uint32_t>(S::kInputId), name = n.get<uint32_t>(S::kOutputId);
    static const bool has_silu = xnn_has_silu != nullptr && xnn_has_silu();
    if (!has_silu || !is_float(source) || !is_float(name) || known_[name].result)
      return unary(n, xnn_unary_sigmoid);
    Gate gate{source, 0, 0, out_.origins.back()};
    TORCHETTE_TRY(find(n, S::kInputId, &gate.in));
    TORCHETTE_TRY(make(n, S::kOutputId, &gate.out));
    same(n);
    out_.origins.pop_back();
    gates_[name] = gate;
    return Error::Ok;
  }

  Error multiply(const Table& n, float low, float high) {
    using M = fb::XNNMultiply;
    const auto a = n.get<uint32_t>(M::kInput1Id), b = n.get<uint32_t>(M::kInput2Id);
    const bool has_limits = std::isfinite(low) || std::isfinite(high);
    for (const auto& [source, name] : {std::pair(a, b), std::pair(b, a)}) {
      const auto gate = gates_.find(name);
      if (gate == gates_.end() || gate->second.source != source || has_limits ||
          !is_float(n.get<uint32_t>(M::kOutputId)))
        continue;
      uint32_t out;
      TORCHETTE_TRY(make(n, M::kOutputId, &out));
      TORCHETTE_XNN(xnn_define_silu(out_.subgraph, gate->second.in, out));
      known_[name].read = true;
      same(n, source == a ? M::kInput1Id : M::kInput2Id, M::kOutputId);
      return Error::Ok;
    }
    return binary(n, xnn_binary_multiply, low, high);
  }

  bool is_float(uint32_t name) const {
    return name < known_.size() && known_[name].type == xnn_datatype_fp32;
  }

  Error unary(const Table& n, xnn_unary_operator op, const xnn_unary_params* params = nullptr) {
    uint32_t in, out;
    TORCHETTE_TRY(find(n, fb::XNNSigmoid::kInputId, &in));
    TORCHETTE_TRY(make(n, fb::XNNSigmoid::kOutputId, &out, op == xnn_unary_convert));
    TORCHETTE_XNN(xnn_define_unary(out_.subgraph, op, params, in, out, 0));
    same(n);
    return Error::Ok;
  }

  Error binary(const Table& n, xnn_binary_operator op, float low, float high) {
    uint32_t a, b, out;
    TORCHETTE_TRY(find(n, fb::XNNAdd::kInput1Id, &a));
    TORCHETTE_TRY(find(n, fb::XNNAdd::kInput2Id, &b));
    TORCHETTE_TRY(make(n, fb::XNNAdd::kOutputId, &out));
    const xnn_binary_params params = {low, high};
    TORCHETTE_XNN(xnn_define_binary(out_.subgraph, op, &params, a, b, out, 0));
    // the library makes a node of its own of limits
    if (std::isfinite(low) || std::isfinite(high))
      out_.origins.push_back({out_.origins.back().debug_handle, kUnary});
    step(Step::Kind::Broadcast, n, {fb::XNNAdd::kInput1Id, fb::XNNAdd::kInput2Id}, fb::XNNAdd::kOutputId);
    return Error::Ok;
  }

  Error concatenate(const Table& n, size_t count) {
    using C = fb::XNNConcatenate5;
    static constexpr uint16_t kInputs[] = {C::kInput1Id, C::kInput2Id, C::kInput3Id, C::kInput4Id,
                                           C::kInput5Id};
    uint32_t in[5], out;
    const Defined* first = nullptr;
    for (size_t i = 0; i < count; ++i) TORCHETTE_TRY(find(n, kInputs[i], &in[i], i == 0 ? &first : nullptr));
    TORCHETTE_TRY(make(n, C::kOutputId, &out));
    const auto axis = static_cast<int32_t>(n.get<uint32_t>(C::kAxis));
    const auto rank = static_cast<int32_t>(first->dims.size());
    step(Step::Kind::Concatenate, n, {kInputs[0]}, C::kOutputId,
         {static_cast<uint64_t>(static_cast<uint32_t>(axis < 0 ? axis + rank : axis))});
    for (size_t i = 1; i < count; ++i) out_.steps.back().inputs.push_back(n.get<uint32_t>(kInputs[i]));
    xnn_subgraph_t g = out_.subgraph;
    switch (count) {
      case 2:
        TORCHETTE_XNN(xnn_define_concatenate2(g, axis, in[0], in[1], out, 0));
        break;
      case 3:
        TORCHETTE_XNN(xnn_define_concatenate3(g, axis, in[0], in[1], in[2], out, 0));
        break;
      case 4:
        TORCHETTE_XNN(xnn_define_concatenate4(g, axis, in[0], in[1], in[2], in[3], out, 0));
        break;
      default:
        TORCHETTE_XNN(xnn_define_concatenate5(g, axis, in[0], in[1], in[2], in[3], in[4], out, 0));
    }
    return Error::Ok;
  }

  Error convolution(const Table& n, Node kind, float low, float high) {
    using C = fb::XNNConv2d;
    const auto u = [&](uint16_t slot) { return n.get<uint32_t>(slot); };
    uint32_t in, filter, bias, out;
    const Defined *weights, *offsets, *image;
    TORCHETTE_TRY(find(n, C::kInput1Id, &in, &image, Reads::Rows));
    TORCHETTE_TRY(find(n, C::kFilterId, &filter, &weights, Reads::Weights));
    TORCHETTE_TRY(find(n, C::kBiasId, &bias, &offsets, Reads::Weights, true));
    TORCHETTE_TRY(make(n, C::kOutputId, &out));
    const uint64_t groups = u(C::kGroups), gic = u(C::kGroupInputChannels), goc = u(C::kGroupOutputChannels);
    const uint32_t kh = u(C::kKernelHeight), kw = u(C::kKernelWidth);
    const bool depthwise = kind == Node::XNNDepthwiseConv2d;
    const std::vector<size_t> filter_dims =
        depthwise ? std::vector<size_t>{1, kh, kw, static_cast<size_t>(groups * goc)}
                  : std::vector<size_t>{static_cast<size_t>(groups * goc), kh, kw, static_cast<size_t>(gic)};
    TORCHETTE_CHECK(
        groups != 0 && gic != 0 && goc != 0 && weights->constant && weights->dims == filter_dims &&
            (offsets == nullptr || (offsets->constant && product(offsets->dims) == groups * goc)) &&
            image->dims.size() == 4 && image->dims[3] == groups * gic &&
            scales_fit(*image, *weights, offsets, depthwise ? 3 : 0, 3),
        DelegateInvalidCompatibility, "a convolution's weights do not fit its numbers");
    std::vector<uint64_t> window = {kh,
                                    kw,
                                    u(C::kSubsamplingHeight),
                                    u(C::kSubsamplingWidth),
                                    u(C::kDilationHeight),
                                    u(C::kDilationWidth),
                                    u(C::kPaddingTop),
                                    u(C::kPaddingLeft),
                                    u(C::kPaddingBottom),
                                    u(C::kPaddingRight)};
    const bool transposed = kind == Node::XNNConvTranspose2d;
    if (transposed) window.insert(window.end(), {u(C::kAdjustmentHeight), u(C::kAdjustmentWidth)});
    window.insert(window.end(), {groups * gic, groups * goc});
    // of one place, taken at every place: the image stays as large, whatever size it has
    const std::vector<uint64_t> place = {1, 1, 1, 1, window[4], window[5], 0, 0, 0, 0};
    const bool of_pixels = std::equal(place.begin(), place.end(), window.begin());
    step(transposed ? Step::Kind::Transposed : Step::Kind::Convolution, n, {C::kInput1Id}, C::kOutputId,
         std::move(window));
    const bool has_rows = kind == Node::XNNConv2d && groups == 1;
    // squeezed to one pixel, an image is a row
    const bool is_linear = has_rows && of_pixels && has_one_row(*image, *weights, offsets);
    packed_as(*weights, (is_linear ? kLinear : std::to_string(static_cast<int>(kind)) + ',') +
                            std::to_string(image->type) + ',' + std::to_string(groups) + ',' +
                            std::to_string(gic) + ',' + std::to_string(goc));
    if (has_rows) multiplies(*image, *weights, offsets, is_linear);
    TORCHETTE_TRY(widen(*weights, &filter));
    if (offsets != nullptr) TORCHETTE_TRY(widen(*offsets, &bias));
    xnn_subgraph_t g = out_.subgraph;
    if (is_linear) {
      const size_t rows[] = {weights->dims[0], weights->dims[3]};
      TORCHETTE_XNN(xnn_define_tensor_value(g, weights->type, 2, rows, weights->data, XNN_INVALID_VALUE_ID, 0,
                                            &filter));
      TORCHETTE_XNN(xnn_define_fully_connected(g, low, high, in, filter, bias, out, 0));
    } else if (transposed) {
      TORCHETTE_XNN(xnn_define_deconvolution_2d(
          g, u(C::kPaddingTop), u(C::kPaddingRight), u(C::kPaddingBottom), u(C::kPaddingLeft),
          u(C::kAdjustmentHeight), u(C::kAdjustmentWidth), kh, kw, u(C::kSubsamplingHeight),
          u(C::kSubsamplingWidth), u(C::kDilationHeight), u(C::kDilationWidth), static_cast<uint32_t>(groups),
          gic, goc, low, high, in, filter, bias, out, 0));
    } else if (depthwise) {
      TORCHETTE_CHECK(gic == 1, DelegateInvalidCompatibility,
                      "a depthwise convolution of %llu channels a group",
                      static_cast<unsigned long long>(gic));
      TORCHETTE_XNN(xnn_define_depthwise_convolution_2d(
          g, u(C::kPaddingTop), u(C::kPaddingRight), u(C::kPaddingBottom), u(C::kPaddingLeft), kh, kw,
          u(C::kSubsamplingHeight), u(C::kSubsamplingWidth), u(C::kDilationHeight), u(C::kDilationWidth),
          static_cast<uint32_t>(goc), static_cast<size_t>(groups), low, high, in, filter, bias, out, 0));
    } else {
      TORCHETTE_XNN(xnn_define_convolution_2d(
          g, u(C::kPaddingTop), u(C::kPaddingRight), u(C::kPaddingBottom), u(C::kPaddingLeft), kh, kw,
          u(C::kSubsamplingHeight), u(C::kSubsamplingWidth), u(C::kDilationHeight), u(C::kDilationWidth),
          static_cast<uint32_t>(groups), gic, goc, low, high, in, filter, bias, out, 0));
    }
    return Error::Ok;
  }

  Error pool(const Table& n, bool largest, float low, float high) {
    using P = fb::XNNMaxPooling2d;
    const auto u = [&](uint16_t slot) { return n.get<uint32_t>(slot); };
    uint32_t in, out;
    TORCHETTE_TRY(find(n, P::kInputId, &in));
    TORCHETTE_TRY(make(n, P::kOutputId, &out));
    step(Step::Kind::Convolution, n, {P::kInputId}, P::kOutputId,
         {u(P::kPoolingHeight), u(P::kPoolingWidth), u(P::kStrideHeight), u(P::kStrideWidth),
          largest ? u(P::kDilationHeight) : 1, largest ? u(P::kDilationWidth) : 1, u(P::kPaddingTop),
          u(P::kPaddingLeft), u(P::kPaddingBottom), u(P::kPaddingRight), 0, 0});
    if (largest) {
      TORCHETTE_XNN(xnn_define_max_pooling_2d(
          out_.subgraph, u(P::kPaddingTop), u(P::kPaddingRight), u(P::kPaddingBottom), u(P::kPaddingLeft),
          u(P::kPoolingHeight), u(P::kPoolingWidth), u(P::kStrideHeight), u(P::kStrideWidth),
          u(P::kDilationHeight), u(P::kDilationWidth), low, high, in, out, 0));
    } else {
      TORCHETTE_XNN(xnn_define_average_pooling_2d(
          out_.subgraph, u(P::kPaddingTop), u(P::kPaddingRight), u(P::kPaddingBottom), u(P::kPaddingLeft),
          u(P::kPoolingHeight), u(P::kPoolingWidth), u(P::kStrideHeight), u(P::kStrideWidth), low, high, in,
          out, 0));
    }
    return Error::Ok;
  }

  Error node(const Table& entry) {
    const auto kind = entry.get<Node>(fb::XNode::kXnodeUnionType);
    const Table n = entry.table(fb::XNode::kXnodeUnion);
    const Table range = entry.table(fb::XNode::kOutputMinMax);
    float low = -kInfinity, high = kInfinity;
    if (range.present()) {
      low = range.get<float>(fb::OutputMinMax::kOutputMin);
      high = range.get<float>(fb::OutputMinMax::kOutputMax);
    }
    xnn_subgraph_t g = out_.subgraph;
    xnn_unary_params params{};
    uint32_t in, out;
    const Defined* source;
    size_t numbers[XNN_MAX_TENSOR_DIMS], more[XNN_MAX_TENSOR_DIMS];
    switch (kind) {
      case Node::XNNAdd:
        return binary(n, xnn_binary_add, low, high);
      case Node::XNNSubtract:
        return binary(n, xnn_binary_subtract, low, high);
      case Node::XNNMultiply:
        return multiply(n, low, high);
      case Node::XNNDiv:
        return binary(n, xnn_binary_divide, low, high);
      case Node::XNNMinimum:
        return binary(n, xnn_binary_minimum, low, high);
      case Node::XNNMaximum:
        return binary(n, xnn_binary_maximum, low, high);
      case Node::XNNPReLU:
        return binary(n, xnn_binary_prelu, low, high);
      case Node::XNNClamp:
        params.clamp = {low, high};
        return unary(n, xnn_unary_clamp, &params);
      case Node::XNNSigmoid:
        return sigmoid(n);
      case Node::XNNFloor:
        return unary(n, xnn_unary_floor);
      case Node::XNNConvert:
        return unary(n, xnn_unary_convert);
      case Node::XNNSquareRoot:
        return unary(n, xnn_unary_square_root);
      case Node::XNNReciprocalSquareRoot:
        return unary(n, xnn_unary_reciprocal_square_root);
      case Node::XNNCeiling:
        return unary(n, xnn_unary_ceiling);
      case Node::XNNHardswish:
        return unary(n, xnn_unary_hardswish);
      case Node::XNNNegate:
        return unary(n, xnn_unary_negate);
      case Node::XNNSquare:
        return unary(n, xnn_unary_square);
      case Node::XNNAbs:
        return unary(n, xnn_unary_abs);
      case Node::XNNLog:
        return unary(n, xnn_unary_log);
      case Node::XNNGelu:
        return unary(n, xnn_unary_gelu);
      case Node::XNNTanh:
        return unary(n, xnn_unary_tanh);
      case Node::XNNExp:
        return unary(n, xnn_unary_exp);
      case Node::XNNSin:
        return unary(n, xnn_unary_sine);
      case Node::XNNCos:
        return unary(n, xnn_unary_cosine);
      case Node::XNNLeakyReLU:
        params.leaky_relu = {n.get<float>(fb::XNNLeakyReLU::kNegativeSlope)};
        TORCHETTE_TRY(find(n, fb::XNNLeakyReLU::kInputId, &in));
        TORCHETTE_TRY(make(n, fb::XNNLeakyReLU::kOutputId, &out));
        TORCHETTE_XNN(xnn_define_unary(g, xnn_unary_leaky_relu, &params, in, out, 0));
        same(n, fb::XNNLeakyReLU::kInputId, fb::XNNLeakyReLU::kOutputId);
        return Error::Ok;
      case Node::XNNELU:
        params.elu = {n.get<float>(fb::XNNELU::kAlpha)};
        TORCHETTE_TRY(find(n, fb::XNNELU::kInputId, &in));
        TORCHETTE_TRY(make(n, fb::XNNELU::kOutputId, &out));
        TORCHETTE_XNN(xnn_define_unary(g, xnn_unary_elu, &params, in, out, 0));
        same(n, fb::XNNELU::kInputId, fb::XNNELU::kOutputId);
        return Error::Ok;
      case Node::XNNCopy:
        TORCHETTE_TRY(find(n, fb::XNNCopy::kInputId, &in));
        TORCHETTE_TRY(make(n, fb::XNNCopy::kOutputId, &out));
        TORCHETTE_XNN(xnn_define_copy(g, in, out, 0));
        same(n, fb::XNNCopy::kInputId, fb::XNNCopy::kOutputId);
        return Error::Ok;
      case Node::XNNSoftmax:
        TORCHETTE_TRY(find(n, fb::XNNSoftmax::kInputId, &in));
        TORCHETTE_TRY(make(n, fb::XNNSoftmax::kOutputId, &out));
        TORCHETTE_XNN(xnn_define_softmax(g, in, out, 0));
        same(n, fb::XNNSoftmax::kInputId, fb::XNNSoftmax::kOutputId);
        return Error::Ok;
      case Node::XNNGlobalAvgPooling2d: {
        TORCHETTE_TRY(find(n, fb::XNNGlobalAvgPooling2d::kInputId, &in, &source));
        TORCHETTE_TRY(make(n, fb::XNNGlobalAvgPooling2d::kOutputId, &out));
        TORCHETTE_CHECK(source->dims.size() == 4, DelegateInvalidCompatibility, "an image of %zu dimensions",
                        source->dims.size());
        // One channel: its dimension goes with the others, so that the library adds up what lies side by
        // side.
        static constexpr int64_t kAxes[] = {1, 2, 3};
        const size_t count = source->dims[3] == 1 ? 3 : 2;
        step(Step::Kind::Mean, n, {fb::XNNGlobalAvgPooling2d::kInputId}, fb::XNNGlobalAvgPooling2d::kOutputId,
             {count});
        TORCHETTE_XNN(
            xnn_define_static_reduce_v2(g, xnn_reduce_mean, count, kAxes, in, out, XNN_FLAG_KEEP_DIMS));
        return Error::Ok;
      }
      case Node::XNNConcatenate2:
        return concatenate(n, 2);
      case Node::XNNConcatenate3:
        return concatenate(n, 3);
      case Node::XNNConcatenate4:
        return concatenate(n, 4);
      case Node::XNNConcatenate5:
        return concatenate(n, 5);
      case Node::XNNConv2d:
      case Node::XNNDepthwiseConv2d:
      case Node::XNNConvTranspose2d:
        return convolution(n, kind, low, high);
      case Node::XNNMaxPooling2d:
        return pool(n, true, low, high);
      case Node::XNNAvgPooling2d:
        return pool(n, false, low, high);
      case Node::XNNFullyConnected: {
        using F = fb::XNNFullyConnected;
        uint32_t filter, bias;
        const Defined *weights, *offsets;
        TORCHETTE_TRY(find(n, F::kInput1Id, &in, &source, Reads::Rows));
        TORCHETTE_TRY(find(n, F::kFilterId, &filter, &weights, Reads::Weights));
        TORCHETTE_TRY(find(n, F::kBiasId, &bias, &offsets, Reads::Weights, true));
        TORCHETTE_TRY(make(n, F::kOutputId, &out));
        const uint32_t flags = n.get<uint32_t>(F::kFlags) & XNN_FLAG_TRANSPOSE_WEIGHTS;
        TORCHETTE_CHECK(
            weights->dims.size() == 2 &&
                (offsets == nullptr || product(offsets->dims) == weights->dims[flags != 0 ? 1 : 0]) &&
                scales_fit(*source, *weights, offsets, flags != 0 ? 1 : 0, 1),
            DelegateInvalidCompatibility, "a linear layer's bias does not fit its weights");
        packed_as(*weights, (flags != 0 ? "transposed," : kLinear) + std::to_string(source->type));
        if (!weights->constant && offsets != nullptr && offsets->buffer != SIZE_MAX)
          out_.constants[offsets->buffer].stays = true;  // both are packed when the graph runs
        if (flags == 0) multiplies(*source, *weights, offsets, has_one_row(*source, *weights, offsets));
        step(Step::Kind::Linear, n, {F::kInput1Id, F::kFilterId, F::kBiasId}, F::kOutputId, {flags});
        TORCHETTE_XNN(xnn_define_fully_connected(g, low, high, in, filter, bias, out, flags));
        return Error::Ok;
      }
      case Node::XNNBatchMatrixMultiply: {
        uint32_t other;
        TORCHETTE_TRY(find(n, fb::XNNBatchMatrixMultiply::kInput1Id, &in));
        TORCHETTE_TRY(find(n, fb::XNNBatchMatrixMultiply::kInput2Id, &other));
        TORCHETTE_TRY(make(n, fb::XNNBatchMatrixMultiply::kOutputId, &out));
        const uint32_t flags = n.get<uint32_t>(fb::XNNBatchMatrixMultiply::kFlags) & XNN_FLAG_TRANSPOSE_B;
        using B = fb::XNNBatchMatrixMultiply;
        step(Step::Kind::Product, n, {B::kInput1Id, B::kInput2Id}, B::kOutputId, {flags});
        TORCHETTE_XNN(xnn_define_batch_matrix_multiply(g, in, other, out, flags));
        return Error::Ok;
      }
      case Node::XNNScaledDotProductAttention: {
        using A = fb::XNNScaledDotProductAttention;
        uint32_t key, value, scale, mask;
        TORCHETTE_TRY(find(n, A::kQueryId, &in));
        TORCHETTE_TRY(find(n, A::kKeyId, &key));
        TORCHETTE_TRY(find(n, A::kValueId, &value));
        TORCHETTE_TRY(find(n, A::kScaleId, &scale));
        TORCHETTE_TRY(find(n, A::kMaskId, &mask));
        TORCHETTE_TRY(make(n, A::kOutputId, &out));
        step(Step::Kind::Attention, n, {A::kQueryId, A::kKeyId, A::kValueId, A::kScaleId, A::kMaskId},
             A::kOutputId);
        TORCHETTE_XNN(xnn_define_scaled_dot_product_attention(g, xnn_attention_logits_cap_type_none, nullptr,
                                                              in, key, value, scale, mask, out, 0));
        return Error::Ok;
      }
      case Node::XNNStaticTranspose:
        TORCHETTE_TRY(find(n, fb::XNNStaticTranspose::kInputId, &in, &source));
        TORCHETTE_TRY(make(n, fb::XNNStaticTranspose::kOutputId, &out));
        TORCHETTE_TRY(sizes(n, fb::XNNStaticTranspose::kPerm, source->dims.size(), numbers));
        step(Step::Kind::Transpose, n, {fb::XNNStaticTranspose::kInputId}, fb::XNNStaticTranspose::kOutputId,
             {numbers, numbers + source->dims.size()});
        TORCHETTE_XNN(xnn_define_static_transpose(g, source->dims.size(), numbers, in, out, 0));
        return Error::Ok;
      case Node::XNNStaticReshape: {
        TORCHETTE_TRY(find(n, fb::XNNStaticReshape::kInputId, &in));
        TORCHETTE_TRY(make(n, fb::XNNStaticReshape::kOutputId, &out));
        const size_t rank = n.vector<uint32_t>(fb::XNNStaticReshape::kNewShape).size();
        TORCHETTE_TRY(sizes(n, fb::XNNStaticReshape::kNewShape, rank, numbers));
        step(Step::Kind::Reshape, n, {fb::XNNStaticReshape::kInputId}, fb::XNNStaticReshape::kOutputId,
             {numbers, numbers + rank});
        TORCHETTE_XNN(xnn_define_static_reshape(g, rank, numbers, in, out, 0));
        return Error::Ok;
      }
      case Node::XNNStaticSlice:
        TORCHETTE_TRY(find(n, fb::XNNStaticSlice::kInputId, &in, &source));
        TORCHETTE_TRY(make(n, fb::XNNStaticSlice::kOutputId, &out));
        TORCHETTE_TRY(sizes(n, fb::XNNStaticSlice::kOffsets, source->dims.size(), numbers));
        TORCHETTE_TRY(sizes(n, fb::XNNStaticSlice::kSizes, source->dims.size(), more));
        step(Step::Kind::Slice, n, {fb::XNNStaticSlice::kInputId}, fb::XNNStaticSlice::kOutputId,
             {numbers, numbers + source->dims.size()});
        out_.steps.back().numbers.insert(out_.steps.back().numbers.end(), more, more + source->dims.size());
        TORCHETTE_XNN(xnn_define_static_slice(g, source->dims.size(), numbers, more, in, out, 0));
        return Error::Ok;
      case Node::XNNStaticConstantPad:
        TORCHETTE_TRY(find(n, fb::XNNStaticConstantPad::kInputId, &in, &source));
        TORCHETTE_TRY(make(n, fb::XNNStaticConstantPad::kOutputId, &out));
        TORCHETTE_TRY(sizes(n, fb::XNNStaticConstantPad::kPrePaddings, source->dims.size(), numbers));
        TORCHETTE_TRY(sizes(n, fb::XNNStaticConstantPad::kPostPaddings, source->dims.size(), more));
        step(Step::Kind::Pad, n, {fb::XNNStaticConstantPad::kInputId}, fb::XNNStaticConstantPad::kOutputId,
             {numbers, numbers + source->dims.size()});
        out_.steps.back().numbers.insert(out_.steps.back().numbers.end(), more, more + source->dims.size());
        TORCHETTE_XNN(xnn_define_static_constant_pad(
            g, numbers, more, n.get<float>(fb::XNNStaticConstantPad::kPaddingValue), in, out, 0));
        return Error::Ok;
      case Node::XNNStaticResizeBilinear2D:
        TORCHETTE_TRY(find(n, fb::XNNStaticResizeBilinear2D::kInputId, &in));
        TORCHETTE_TRY(make(n, fb::XNNStaticResizeBilinear2D::kOutputId, &out));
        step(Step::Kind::Resize, n, {fb::XNNStaticResizeBilinear2D::kInputId},
             fb::XNNStaticResizeBilinear2D::kOutputId,
             {n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kNewHeight),
              n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kNewWidth)});
        TORCHETTE_XNN(xnn_define_static_resize_bilinear_2d(
            g, n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kNewHeight),
            n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kNewWidth), in, out,
            n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kFlags) & XNN_FLAG_ALIGN_CORNERS));
        return Error::Ok;
      default:
        TORCHETTE_LOG(Error, "a node of kind %u, which this backend does not have",
                      static_cast<unsigned>(kind));
        return Error::NotSupported;
    }
  }

  const uint8_t* bytes_;
  size_t size_;
  const NamedDataMap* named_;
  Graph& out_;
  const uint8_t* data_ = nullptr;  // of constants behind the graph
  size_t data_size_ = 0;
  uint32_t externs_ = 0;
  Reader nothing_{nullptr, 0};
  Tables constants_ = Table::at(&nothing_, 0).tables(0);
  Tables buffers_ = constants_;
  std::vector<Defined> known_;
  std::string key_;                          // of the constant that was read last; empty if it has none
  std::map<uint32_t, Gate> gates_;           // by the name of what they make
  std::map<const void*, std::string> uses_;  // weights -> how they are packed
};

}  // namespace

Error read_graph(const FreeableBuffer& processed, const NamedDataMap* named_data, Graph* out) {
  return Builder(processed, named_data, out).build();
}

}  // namespace xnnpack
}  // namespace torchette
