// SPDX-License-Identifier: BSD-3-Clause
// The .npy format: a magic string, the length of the header, the header (a Python dictionary of three
// entries) and the elements. Only little-endian elements are supported, as in .pte files.
#include "torchette/extension/runner/npy.h"

#include <cstdlib>
#include <cstring>

namespace torchette::extension {
namespace {

struct Dtype {
  ScalarType type;
  const char* descr;
};
constexpr Dtype kDtypes[] = {
    {ScalarType::Byte, "|u1"},   {ScalarType::Char, "|i1"},   {ScalarType::Short, "<i2"},
    {ScalarType::Int, "<i4"},    {ScalarType::Long, "<i8"},   {ScalarType::Half, "<f2"},
    {ScalarType::Float, "<f4"},  {ScalarType::Double, "<f8"}, {ScalarType::Bool, "|b1"},
    {ScalarType::UInt16, "<u2"}, {ScalarType::UInt32, "<u4"}, {ScalarType::UInt64, "<u8"},
};
constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicSize = 6;

/// Returns the header's text after `key` and its colon, or an empty string if the key is missing.
std::string entry(const std::string& header, const char* key) {
  const size_t at = header.find(std::string("'") + key + "':");
  if (at == std::string::npos) return "";
  const size_t start = header.find_first_not_of(' ', at + strlen(key) + 3);
  return start == std::string::npos ? "" : header.substr(start);
}

}  // namespace

TensorPtr read_npy(const std::string& bytes, std::string* reason) {
  *reason = "it is not a .npy file";
  if (bytes.size() < kMagicSize + 6 || memcmp(bytes.data(), kMagic, kMagicSize) != 0) return nullptr;
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(bytes[i])); };
  const bool is_version_1 = byte(kMagicSize) == 1;
  const size_t start = kMagicSize + (is_version_1 ? 4 : 6);
  const size_t length = byte(kMagicSize + 2) | byte(kMagicSize + 3) << 8 |
                        (is_version_1 ? 0 : byte(kMagicSize + 4) << 16 | byte(kMagicSize + 5) << 24);
  if (length > bytes.size() - start) return nullptr;
  const std::string header = bytes.substr(start, length);

  const std::string descr = entry(header, "descr");
  const Dtype* dtype = nullptr;
  for (const Dtype& item : kDtypes)
    if (descr.compare(0, 5, std::string("'") + item.descr + "'") == 0) dtype = &item;
  if (dtype == nullptr) {
    *reason = "its dtype is not supported: " + descr.substr(0, descr.find(','));
    return nullptr;
  }
  const bool fortran = entry(header, "fortran_order").compare(0, 4, "True") == 0;
  std::vector<SizesType> sizes;
  size_t count = 1;
  const std::string shape = entry(header, "shape");
  for (const char* at = shape.c_str(); *at != 0 && *at != ')'; ++at) {
    if (*at < '0' || *at > '9') continue;
    char* end;
    const unsigned long long size = strtoull(at, &end, 10);
    if (size > INT32_MAX || (size != 0 && count > INT32_MAX / size)) {
      *reason = "it has more than 2^31 - 1 elements";
      return nullptr;
    }
    sizes.push_back(static_cast<SizesType>(size));
    count *= size;
    at = end - 1;
  }
  if (shape.empty() || bytes.size() - start - length != count * element_size(dtype->type)) {
    *reason = "its length does not match its shape and dtype";
    return nullptr;
  }
  std::vector<DimOrderType> order(sizes.size());
  for (size_t d = 0; d < order.size(); ++d)
    order[d] = static_cast<DimOrderType>(fortran ? order.size() - 1 - d : d);
  *reason = "it has " + std::to_string(sizes.size()) + " dimensions, at most " + std::to_string(kMaxDim);
  return make_tensor_ptr(
      std::move(sizes),
      std::vector<uint8_t>(bytes.begin() + static_cast<ptrdiff_t>(start + length), bytes.end()),
      std::move(order), {}, dtype->type, TensorShapeDynamism::STATIC);
}

std::string write_npy(const Tensor& tensor) {
  const char* descr = nullptr;
  for (const Dtype& item : kDtypes)
    if (item.type == tensor.scalar_type()) descr = item.descr;
  if (descr == nullptr) return "";
  std::string header = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (";
  for (SizesType size : tensor.sizes()) header += std::to_string(size) + ", ";
  header += ")}";
  if (tensor.dim() == 0)
    header = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': ()}";
  header.append(64 - (kMagicSize + 4 + header.size() + 1) % 64, ' ');
  header += '\n';
  std::string bytes(kMagic, kMagicSize);
  bytes += '\1';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;

  const auto n = static_cast<size_t>(tensor.dim());
  const size_t width = element_size(tensor.scalar_type());
  std::vector<SizesType> index(n);
  const char* data = tensor.const_data_ptr<char>();
  for (ptrdiff_t i = 0; i < tensor.numel(); ++i) {
    size_t at = 0;
    for (size_t d = 0; d < n; ++d)
      at += static_cast<size_t>(index[d]) * static_cast<size_t>(tensor.strides()[d]);
    bytes.append(data + at * width, width);
    for (size_t d = n; d-- > 0 && ++index[d] == tensor.sizes()[d];) index[d] = 0;
  }
  return bytes;
}

}  // namespace torchette::extension
