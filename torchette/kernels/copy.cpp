// SPDX-License-Identifier: BSD-3-Clause
// Copies, with conversion of type and dim order.
#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Copies x to `out`, which determines the type and the dim order.
static Error copy_of(const Tensor& x, Tensor& out) {
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  return assign(x, out);
}
static Error clone_out(Context&, const Tensor& x, Optional<int64_t>, Tensor& out) { return copy_of(x, out); }
static Error alias_copy_out(Context&, const Tensor& x, Tensor& out) { return copy_of(x, out); }
static Error to_copy_out(Context&, const Tensor& x, bool, Optional<int64_t>, Tensor& out) {
  return copy_of(x, out);
}
static Error to_dim_order_copy_out(Context&, const Tensor& x, bool, Optional<Span<const int64_t>>,
                                   Tensor& out) {
  return copy_of(x, out);
}
static Error copy_out(Context&, const Tensor& to, const Tensor& from, bool, Tensor& out) {
  TORCHETTE_TRY(resize_result(out, to.sizes()));
  return assign(from, out);
}
static Error copy_(Context&, Tensor& to, const Tensor& from, bool) { return assign(from, to); }

TORCHETTE_KERNELS_NARROW(copy,                                                           //
                         TORCHETTE_KERNEL("aten::clone.out", clone_out),                 //
                         TORCHETTE_KERNEL("aten::alias_copy.out", alias_copy_out),       //
                         TORCHETTE_KERNEL("aten::detach_copy.out", alias_copy_out),      //
                         TORCHETTE_KERNEL("aten::lift_fresh_copy.out", alias_copy_out),  //
                         TORCHETTE_KERNEL("et_copy::_h2d_copy.out",
                                          alias_copy_out),  // the device is the host
                         TORCHETTE_KERNEL("et_copy::_d2h_copy.out", alias_copy_out),                        //
                         TORCHETTE_KERNEL("aten::_to_copy.out", to_copy_out),                               //
                         TORCHETTE_KERNEL("dim_order_ops::_to_dim_order_copy.out", to_dim_order_copy_out),  //
                         TORCHETTE_KERNEL("dim_order_ops::_clone_dim_order.out", to_dim_order_copy_out),    //
                         TORCHETTE_KERNEL("aten::copy.out", copy_out),                                      //
                         TORCHETTE_KERNEL("aten::copy_", copy_))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
