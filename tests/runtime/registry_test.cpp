// SPDX-License-Identifier: BSD-3-Clause
#include <cstring>

#include "check.h"
#include "test_kernels.h"
#include "torchette/runtime/backend.h"
#include "torchette/runtime/kernel_registry.h"

using namespace torchette;

namespace torchette {

Span<const Kernels> kernel_table() { return test_table(); }

}  // namespace torchette

namespace {

Error nothing(Context&, const Tensor&, Optional<int64_t>, Span<const double>, Tensor&) { return Error::Ok; }

struct NullBackend final : BackendInterface {
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer*, Span<const CompileSpec>) const override {
    return Error::NotSupported;
  }
  Error execute(BackendExecutionContext&, DelegateHandle*, Span<Value*>) const override { return Error::Ok; }
};

}  // namespace

void registry_tests() {
  CHECK(find_kernel("test::add.out") != nullptr);
  CHECK(find_kernel({"test::add", 9}, {"out", 3}) == find_kernel("test::add.out"));
  CHECK(find_kernel({"test::add", 9}, {"ou", 2}) == nullptr);
  CHECK(find_kernel({"test::add.out", 13}, {"", 0}) != nullptr);
  CHECK(find_kernel("test::add") == nullptr);
  CHECK(find_kernel("") == nullptr);
  CHECK(strcmp(find_kernel("test::add.out")->signature, "TT?st") == 0);

  static constexpr Kernel kMore[] = {TORCHETTE_KERNEL("more::nothing", nothing)};
  static KernelRegistration more{kMore};
  CHECK(find_kernel("more::nothing") == nullptr);
  CHECK(register_kernels(more) == Error::Ok);
  CHECK(strcmp(find_kernel("more::nothing")->signature, "T?iDt") == 0);
  KernelRegistration duplicate{kMore};
  CHECK(register_kernels(duplicate) == Error::RegistrationAlreadyRegistered);
  static constexpr Kernel kTwice[] = {TORCHETTE_KERNEL("twice::x", nothing),
                                      TORCHETTE_KERNEL("twice::x", nothing)};
  KernelRegistration twice{kTwice};
  CHECK(register_kernels(twice) == Error::RegistrationAlreadyRegistered);
  CHECK(find_kernel("twice::x") == nullptr);

  // A node that creates kernels on demand precedes other nodes, and may decline a name.
  static bool makes = true;
  static KernelRegistration maker;
  maker.find = [](Kernels, Span<const char> name, Span<const char>) -> const Kernel* {
    return makes && name.size() == 13 && memcmp(name.data(), "test::add.out", 13) == 0 ? &kMore[0] : nullptr;
  };
  const Kernel* const before = find_kernel("test::add.out");
  CHECK(register_kernels(maker) == Error::Ok);
  CHECK(find_kernel("test::add.out") == &kMore[0] && find_kernel("more::nothing") == &kMore[0]);
  makes = false;
  CHECK(find_kernel("test::add.out") == before);

  static NullBackend object;
  static Backend first{"First", &object}, second{"Second", &object}, nameless{nullptr, &object};
  CHECK(register_backend(first) == Error::Ok);
  CHECK(register_backend(second) == Error::Ok);
  CHECK(register_backend(first) == Error::RegistrationAlreadyRegistered);
  CHECK(register_backend(nameless) == Error::InvalidArgument);
  CHECK(get_num_registered_backends() == 2);
  CHECK(get_backend_class("First") == &object && get_backend_class("Third") == nullptr);
  CHECK(get_backend_name(1).ok() && !get_backend_name(2).ok());
}
