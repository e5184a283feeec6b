// SPDX-License-Identifier: BSD-3-Clause
// The kernels of the test program (make_program.py). They read every byte of their inputs, so that a
// sanitizer finds bad addresses.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
inline namespace TORCHETTE_ISA {

inline uint64_t touched;

inline void touch(const Tensor& t) {
  const auto* p = t.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < t.nbytes(); ++i) touched += p[i];
}
inline void fill(Tensor& t) {
  auto* p = t.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < t.nbytes(); ++i) p[i] = static_cast<uint8_t>(i);
}
inline bool is_float(const Tensor& t) { return t.scalar_type() == ScalarType::Float; }

/// a + b (repeated) * alpha. Without alpha, adds 1 to the first element of a.
inline Error test_add(Context& context, const Tensor& a, const Tensor& b, Optional<Scalar> alpha,
                      Tensor& out) {
  TORCHETTE_CHECK(is_float(a) && is_float(b) && is_float(out), InvalidArgument, "float32 is required");
  TORCHETTE_TRY(resize_tensor(out, a.sizes()));
  auto* scratch = static_cast<float*>(context.allocate_temp(a.nbytes() + 4));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed, "no scratch memory");
  for (ptrdiff_t i = 0; i < a.numel(); ++i) scratch[i] = a.const_data_ptr<float>()[i];
  for (ptrdiff_t i = 0; i < a.numel() && alpha && b.numel() > 0; ++i)
    scratch[i] += b.const_data_ptr<float>()[i % b.numel()] * static_cast<float>(alpha->to_double());
  if (!alpha && a.numel() > 0) scratch[0] += 1;
  for (ptrdiff_t i = 0; i < a.numel(); ++i) out.mutable_data_ptr<float>()[i] = scratch[i];
  return Error::Ok;
}
inline Error test_size(Context&, const Tensor& a, int64_t dim, Value& out) {
  TORCHETTE_CHECK(dim >= 0 && dim < a.dim(), InvalidArgument, "dimension %lld", static_cast<long long>(dim));
  out = Value(static_cast<int64_t>(a.size(static_cast<ptrdiff_t>(dim))));
  return Error::Ok;
}
inline Error test_count(Context&, int64_t limit, Value& count, Value& done) {
  count = Value(count.to_int() == INT64_MAX ? 0 : count.to_int() + 1);
  done = Value(count.to_int() >= limit);
  return Error::Ok;
}
inline Error test_copy(Context&, const Tensor& a, Tensor& out) {
  TORCHETTE_CHECK(a.scalar_type() == out.scalar_type(), InvalidArgument, "the dtypes differ");
  TORCHETTE_TRY(resize_tensor(out, a.sizes()));
  if (a.numel() != 0) memmove(out.mutable_data_ptr(), a.const_data_ptr(), a.nbytes());
  return Error::Ok;
}
inline Error test_scale(Context&, const Tensor& a, double factor, Tensor& out) {
  TORCHETTE_CHECK(is_float(a) && is_float(out), InvalidArgument, "float32 is required");
  TORCHETTE_TRY(resize_tensor(out, a.sizes()));
  for (ptrdiff_t i = 0; i < a.numel(); ++i)
    out.mutable_data_ptr<float>()[i] = a.const_data_ptr<float>()[i] * static_cast<float>(factor);
  return Error::Ok;
}
/// Stores the number of tensors, and whether the sum of doubles and booleans exceeds 3.
inline Error test_lists(Context&, Span<const int64_t> ints, Span<const double> doubles,
                        Span<const bool> bools, Span<const Tensor> tensors,
                        Span<const Optional<Tensor>> optional, Span<const char> mode, Tensor& out) {
  TORCHETTE_CHECK(out.scalar_type() == ScalarType::Long && out.numel() == 2, InvalidArgument,
                  "two int64 elements are required");
  double sum = 0;
  for (int64_t i : ints) touched += static_cast<uint64_t>(i);
  for (double d : doubles) sum += d;
  for (bool b : bools) sum += b ? 1 : 0;
  for (char c : mode) touched += static_cast<uint64_t>(c);
  for (const Tensor& t : tensors) touch(t);
  for (const Optional<Tensor>& t : optional)
    if (t.has_value()) touch(*t);
  out.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(tensors.size() + optional.size());
  out.mutable_data_ptr<int64_t>()[1] = sum > 3 ? 1 : 0;
  return Error::Ok;
}
inline Error test_cat(Context&, Span<const Tensor> tensors, int64_t, Tensor& out) {
  int64_t count = 0;
  for (const Tensor& t : tensors) count += t.numel();
  TORCHETTE_CHECK(count <= INT32_MAX, InvalidArgument, "too many elements");
  const SizesType sizes[] = {static_cast<SizesType>(count)};
  for (const Tensor& t : tensors) touch(t);
  TORCHETTE_TRY(resize_tensor(out, sizes));
  fill(out);
  return Error::Ok;
}
/// A view without data gets the data of `a`; otherwise the elements are copied.
inline Error test_view(Context&, const Tensor& a, Span<const int64_t> size, Tensor& out) {
  TORCHETTE_CHECK(size.size() == 1 && size[0] == -1, InvalidArgument, "only flat views");
  TORCHETTE_CHECK(a.scalar_type() == out.scalar_type(), InvalidArgument, "the dtypes differ");
  const SizesType sizes[] = {static_cast<SizesType>(a.numel())};
  TORCHETTE_TRY(resize_tensor(out, sizes));
  if (out.const_data_ptr() == nullptr) {
    out.unsafe_impl()->data = a.mutable_data_ptr();
  } else if (a.numel() != 0) {
    memmove(out.mutable_data_ptr(), a.const_data_ptr(), a.nbytes());
  }
  return Error::Ok;
}

TORCHETTE_KERNELS(test, TORCHETTE_KERNEL("test::add.out", test_add),
                  TORCHETTE_KERNEL("test::size.int", test_size),
                  TORCHETTE_KERNEL("test::count.to", test_count),
                  TORCHETTE_KERNEL("test::copy.out", test_copy),
                  TORCHETTE_KERNEL("test::scale.out", test_scale),
                  TORCHETTE_KERNEL("test::lists.out", test_lists),
                  TORCHETTE_KERNEL("test::cat.out", test_cat),
                  TORCHETTE_KERNEL("executorch_prim::et_view.default", test_view))

}  // namespace TORCHETTE_ISA

inline Span<const Kernels> test_table() { return {&test_family, 1}; }

}  // namespace torchette
