// SPDX-License-Identifier: BSD-3-Clause
// Reads a bundled program. verify() checks all offsets and sizes once, so later reads need no checks.
#include "torchette/extension/bundled_program.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "torchette/extension/element.h"
#include "torchette/schema/bundled_program.h"

namespace torchette::extension {
namespace {

namespace schema = torchette::schema::bundled_program;
using flat::Reader;
using flat::Table;
using flat::Tables;
using Kind = schema::ValueUnion;

constexpr size_t kIdentifierAt = 4;
constexpr size_t kAlignment = 32;  // of the program in the file

/// A tensor of the file, with memory for its strides.
struct StoredTensor {
  TensorImpl impl{};
  StridesType strides[kMaxDim];

  /// Returns whether the record is a valid tensor with the expected number of bytes.
  bool read(const Table& record) {
    const auto sizes = record.vector<SizesType>(schema::Tensor::kSizes);
    const auto order = record.vector<DimOrderType>(schema::Tensor::kDimOrder);
    const auto data = record.vector<uint8_t>(schema::Tensor::kData);
    const size_t rank = sizes.size();
    impl.type = record.get<ScalarType>(schema::Tensor::kScalarType);
    if (element_size(impl.type) == 0 || rank > kMaxDim || order.size() != rank) return false;
    uint32_t seen = 0;
    for (DimOrderType d : order) seen |= d < rank ? 1u << d : 0;
    if (seen != (1u << rank) - 1) return false;
    const Result<int32_t> numel = dense_strides(sizes, order.data(), strides);
    // The multiplication does not overflow: there are at most 2^31 - 1 elements.
    if (!numel.ok() || uint64_t{element_size(impl.type)} * static_cast<uint64_t>(*numel) != data.size() ||
        !is_aligned_for(data.data(), impl.type))
      return false;
    impl.sizes = const_cast<SizesType*>(sizes.data());
    impl.strides = strides;
    impl.dim_order = order.data();
    impl.data = const_cast<uint8_t*>(data.data());
    impl.numel = *numel;
    impl.capacity = static_cast<size_t>(*numel);
    impl.dim = static_cast<uint8_t>(rank);
    return true;
  }
};

/// Returns a value of the file, or None if the record is damaged. A tensor refers to `tensor`.
Value value_of(const Table& record, StoredTensor* tensor) {
  const Table value = record.table(schema::Value::kVal);
  switch (record.get<Kind>(schema::Value::kValType)) {
    case Kind::Tensor:
      return value.present() && tensor->read(value) ? Value(Tensor(&tensor->impl)) : Value();
    case Kind::Int:
      return Value(value.get<int64_t>(schema::Int::kIntVal));
    case Kind::Bool:
      return Value(value.get<uint8_t>(schema::Bool::kBoolVal) != 0);
    case Kind::Double:
      return Value(value.get<double>(schema::Double::kDoubleVal));
    default:
      return {};
  }
}

/// Returns element `index` of a tensor in row-major order.
Scalar element_of(const TensorImpl& tensor, size_t index) {
  size_t offset = 0;
  for (size_t d = tensor.dim; d-- > 0;) {
    const auto size = static_cast<size_t>(tensor.sizes[d]);
    offset += index % size * static_cast<size_t>(tensor.strides[d]);
    index /= size;
  }
  return get_element(tensor.data, tensor.type, offset);
}

double real_of(const Scalar& value) {
  return value.is_floating() ? value.to_double()
         : value.is_bool()   ? static_cast<double>(value.to_bool())
                             : static_cast<double>(value.to_int());
}

void compare_element(double actual, double expected, double rtol, double atol, OutputComparison* out) {
  ++out->elements;
  if (actual == expected || (std::isnan(actual) && std::isnan(expected))) return;
  const double difference = std::fabs(actual - expected);
  if (!(difference <= out->difference)) out->difference = difference;
  if (!(difference <= atol + rtol * std::fabs(expected)) || std::isinf(expected)) ++out->mismatches;
}

bool same_shape(const TensorImpl& a, const TensorImpl& b) {
  bool same = a.type == b.type && a.dim == b.dim;
  for (size_t d = 0; same && d < a.dim; ++d) same = a.sizes[d] == b.sizes[d];
  return same;
}

}  // namespace

bool BundledProgram::is_bundled(const void* data, size_t size) {
  return size >= 8 && memcmp(static_cast<const char*>(data) + kIdentifierAt, schema::kFileIdentifier, 4) == 0;
}

Result<BundledProgram> BundledProgram::load(const void* data, size_t size) {
  TORCHETTE_CHECK(is_bundled(data, size), InvalidProgram,
                  "the file of %zu bytes is not a bundled program: it lacks the identifier %s", size,
                  schema::kFileIdentifier);
  TORCHETTE_CHECK(reinterpret_cast<uintptr_t>(data) % kAlignment == 0, InvalidArgument,
                  "the bytes of a bundled program must be aligned to %zu bytes", kAlignment);
  const BundledProgram bundle(data, size);
  const Error error = bundle.verify();
  if (error != Error::Ok) return error;
  return bundle;
}

Error BundledProgram::verify() const {
  Reader reader = this->reader();
  const Table root = Table::root(&reader);
  const auto program = root.vector<uint8_t>(schema::BundledProgram::kProgram);
  TORCHETTE_CHECK(reader.ok() && program.size() != 0, InvalidProgram,
                  "the bundled program is damaged: its program is outside the file");
  // In a valid file every record has separate bytes. The budget limits the time of reading a damaged file
  // with shared records.
  size_t budget = size_ / 4;
  StoredTensor tensor;
  const Tables suites = root.tables(schema::BundledProgram::kMethodTestSuites);
  for (size_t s = 0; s < suites.size(); ++s) {
    const Table suite = suites[s];
    suite.string(schema::BundledMethodTestSuite::kMethodName);
    const Tables cases = suite.tables(schema::BundledMethodTestSuite::kTestCases);
    for (size_t c = 0; c < cases.size() && reader.ok(); ++c) {
      const Table record = cases[c];
      for (uint16_t slot :
           {schema::BundledMethodTestCase::kInputs, schema::BundledMethodTestCase::kExpectedOutputs}) {
        const Tables values = record.tables(slot);
        TORCHETTE_CHECK(values.size() < budget, InvalidProgram,
                        "the bundled program is damaged: it has more values than its size allows");
        budget -= values.size() + 1;
        for (size_t i = 0; i < values.size(); ++i)
          TORCHETTE_CHECK(!value_of(values[i], &tensor).is_none() && reader.ok(), InvalidProgram,
                          "the bundled program is damaged: value %zu of case %zu is invalid", i, c);
      }
    }
  }
  TORCHETTE_CHECK(reader.ok(), InvalidProgram,
                  "the bundled program is damaged: its cases are outside the file");
  return Error::Ok;
}

Span<const uint8_t> BundledProgram::program() const {
  Reader reader = this->reader();
  return Table::root(&reader).vector<uint8_t>(schema::BundledProgram::kProgram);
}

size_t BundledProgram::num_cases(const char* method_name) const {
  Reader reader = this->reader();
  const Tables suites = Table::root(&reader).tables(schema::BundledProgram::kMethodTestSuites);
  for (size_t s = 0; s < suites.size(); ++s) {
    const Table suite = suites[s];
    if (strcmp(suite.string(schema::BundledMethodTestSuite::kMethodName).data(), method_name) == 0)
      return suite.tables(schema::BundledMethodTestSuite::kTestCases).size();
  }
  return 0;
}

Table BundledProgram::find(Reader& reader, const char* method_name, size_t case_index) const {
  const Tables suites = Table::root(&reader).tables(schema::BundledProgram::kMethodTestSuites);
  for (size_t s = 0; s < suites.size(); ++s) {
    const Table suite = suites[s];
    if (strcmp(suite.string(schema::BundledMethodTestSuite::kMethodName).data(), method_name) != 0) continue;
    const Tables cases = suite.tables(schema::BundledMethodTestSuite::kTestCases);
    if (case_index < cases.size()) return cases[case_index];
    break;
  }
  TORCHETTE_LOG(Error, "the bundled program has no case %zu for method %s", case_index, method_name);
  return Table::at(&reader, 0);
}

Error BundledProgram::load_bundled_input(Method& method, size_t case_index) const {
  Reader reader = this->reader();
  const Table record = find(reader, method.method_meta().name(), case_index);
  if (!record.present()) return Error::InvalidArgument;
  const Tables inputs = record.tables(schema::BundledMethodTestCase::kInputs);
  TORCHETTE_CHECK(inputs.size() == method.inputs_size(), InvalidArgument,
                  "the method expects %zu inputs, case %zu has %zu", method.inputs_size(), case_index,
                  inputs.size());
  if (EventTracer* const tracer = method.get_event_tracer())
    tracer->set_bundled_input_index(static_cast<int>(case_index));
  for (size_t i = 0; i < inputs.size(); ++i) {
    StoredTensor tensor;
    TORCHETTE_TRY(method.set_input(value_of(inputs[i], &tensor), i));
    const Value& input = method.get_input(i);
    TORCHETTE_CHECK(!input.is_tensor() || !method.writes_input(i) ||
                        input.to_tensor().const_data_ptr() != tensor.impl.data || tensor.impl.numel == 0,
                    NotSupported,
                    "the method writes to input %zu in place, but the bundled program is read-only", i);
  }
  return Error::Ok;
}

size_t BundledProgram::num_expected(const char* method_name, size_t case_index) const {
  Reader reader = this->reader();
  return find(reader, method_name, case_index).tables(schema::BundledMethodTestCase::kExpectedOutputs).size();
}

Result<OutputComparison> BundledProgram::compare(const Method& method, size_t case_index, size_t index,
                                                 double rtol, double atol) const {
  Reader reader = this->reader();
  const Table record = find(reader, method.method_meta().name(), case_index);
  const Tables expected_outputs = record.tables(schema::BundledMethodTestCase::kExpectedOutputs);
  TORCHETTE_CHECK(index < expected_outputs.size() && index < method.outputs_size(), InvalidArgument,
                  "output index %zu is out of range: case %zu has %zu outputs, the method has %zu", index,
                  case_index, expected_outputs.size(), method.outputs_size());
  StoredTensor tensor;
  const Value expected = value_of(expected_outputs[index], &tensor);
  const Value& actual = method.get_output(index);
  OutputComparison result{};
  if (expected.is_tensor()) {
    if (!actual.is_tensor()) return result;
    const TensorImpl& output = *actual.to_tensor().unsafe_impl();
    result.same_kind = same_shape(output, tensor.impl) && has_elements(output.type) &&
                       (output.data != nullptr || output.numel == 0);
    if (!result.same_kind) return result;
    for (size_t i = 0; i < static_cast<size_t>(output.numel); ++i)
      compare_element(real_of(element_of(output, i)), real_of(element_of(tensor.impl, i)), rtol, atol,
                      &result);
  } else if (actual.is_scalar()) {
    result.same_kind = true;
    compare_element(real_of(actual.to_scalar()), real_of(expected.to_scalar()), rtol, atol, &result);
  }
  return result;
}

Error BundledProgram::verify_method_outputs(const Method& method, size_t case_index, double rtol,
                                            double atol) const {
  const size_t count = num_expected(method.method_meta().name(), case_index);
  TORCHETTE_CHECK(count == method.outputs_size(), InvalidArgument,
                  "case %zu expects %zu outputs, the method has %zu", case_index, count,
                  method.outputs_size());
  for (size_t i = 0; i < count; ++i) {
    const Result<OutputComparison> result = compare(method, case_index, i, rtol, atol);
    if (!result.ok()) return result.error();
    TORCHETTE_CHECK(result->matches(), InvalidState,
                    "output %zu of case %zu differs: %zu of %zu elements, largest difference %g", i,
                    case_index, result->mismatches, result->elements, result->difference);
  }
  return Error::Ok;
}

}  // namespace torchette::extension
