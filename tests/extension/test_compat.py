# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's C++ spelling: a program and a kernel that are written for its headers compile against ours and run; every
# header of the table can be included by itself.

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.building import BUILD, CXX, ROOT, built, run

COMPAT = ROOT / "torchette" / "extension" / "compat"


def test_a_program_for_executorch_runs_a_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torchette.exir import to_edge

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.GELU(), torch.nn.Linear(4, 3)).eval()
    program = to_edge(torch.export.export(module, (torch.ones(2, 6),))).to_executorch()
    program.save(str(tmp_path / "model.pte"))
    printed = run(built("torchette_tutorial"), tmp_path / "model.pte").stdout
    expected = module(torch.ones(2, 6)).detach().numpy().ravel()
    np.testing.assert_allclose([float(line) for line in printed.split()], expected, rtol=1e-5, atol=1e-6)
    # its errors are values and messages, its checks end it
    assert "no program: 0x23" in run(built("torchette_tutorial"), __file__, status=1).stderr
    assert "no loader: 0x22" in run(built("torchette_tutorial"), tmp_path / "none", status=-6).stderr
    # and what ExecuTorch's own compiler writes runs as well
    theirs = pytest.importorskip("executorch.exir")
    peer = theirs.to_edge(torch.export.export(module, (torch.ones(2, 6),))).to_executorch()
    (tmp_path / "peer.pte").write_bytes(peer.buffer)
    printed = run(built("torchette_tutorial"), tmp_path / "peer.pte", "forward").stdout
    np.testing.assert_allclose([float(line) for line in printed.split()], expected, rtol=1e-5, atol=1e-6)


# called by itself, and as an operator of a program: its signature, a smaller input, one of another dtype
SCALED = "3 5 7 13.5 16.5 19.5 2 3 4 5 6 7 1 T?Tst 1 1 2 2 0.5 1.5 2.5 3.5 4.5 5.5 1 "


def test_a_kernel_for_executorch_runs_on_our_tensors() -> None:
    assert run(built("torchette_call_kernel")).stdout == SCALED


def with_torch(source: str, folder: Path, *options: str) -> str:
    """What a program prints that is compiled against the installed torch, too."""
    torch = pytest.importorskip("torch")
    home = Path(torch.__file__).parent
    if not (home / "include" / "ATen" / "ATen.h").exists():
        pytest.skip("this torch comes without headers")
    built("torchette_static")
    run(
        *(
            CXX,
            "-std=c++20",
            "-O0",
            *options,
            "-I",
            headers(folder),
            "-I",
            ROOT,
            "-isystem",
            home / "include",
        ),
        *(ROOT / "tests/extension" / source, "-o", folder / "program", BUILD / "libtorchette.a"),
        *(f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}", "-ltorch_cpu", "-lc10"),
    )
    return run(folder / "program").stdout


@pytest.mark.slow
def test_the_same_kernel_runs_on_torch_s_tensors(tmp_path: Path) -> None:
    assert with_torch("call_kernel.cpp", tmp_path, "-DTORCHETTE_ATEN") == SCALED


@pytest.mark.slow
def test_tensors_of_torch_and_ours_share_memory(tmp_path: Path) -> None:
    assert with_torch("aten_test.cpp", tmp_path) == "9 checks, 0 failures\n"


MODULE = """
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

using executorch::extension::from_blob;
using executorch::extension::Module;

float first(float* image) {
  Module m("p.pte");
  auto r = m.forward(from_blob(image, {1, 3, 8, 8}));
  return r.ok() ? r->at(0).toTensor().const_data_ptr<float>()[0] : 0;
}
"""


def test_a_module_is_spelled_as_there(tmp_path: Path) -> None:
    run(CXX, "-std=c++17", "-fsyntax-only", f"-I{headers(tmp_path)}", f"-I{ROOT}", "-xc++", "-", input=MODULE)


BACKEND = """
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/kernel/kernel_includes.h>

using namespace executorch::runtime;

class Acme final : public BackendInterface {
 public:
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               ArrayRef<CompileSpec>) const override {
    EventTracer* tracer = context.event_tracer();
    EventTracerEntry entry = event_tracer_start_profiling_delegate(tracer, "unpack", kUnsetDelegateDebugIntId);
    processed->Free();
    event_tracer_end_profiling_delegate(tracer, entry, "done", 4);
    return context.get_runtime_allocator()->allocate(8);
  }
  Error execute(BackendExecutionContext& context, DelegateHandle*, Span<EValue*> args) const override {
    void* scratch = context.allocate(16);
    if (scratch == nullptr || context.get_temp_allocator()->allocate(16) == nullptr)
      return Error::MemoryAllocationFailed;
    const et_timestamp_t start = et_pal_current_ticks();
    event_tracer_log_profiling_delegate(context.event_tracer(), nullptr, 3, start, start + 5);
    event_tracer_log_output_delegate(context.event_tracer(), nullptr, 3, args[0]->toTensor());
    ET_LOG(Info, "%s", context.get_method_name());
    return Error::Ok;
  }
};

void kernel(KernelRuntimeContext& context) {
  internal::EventTracerProfileOpScope scope(context.internal_event_tracer(), "native_call_add.out");
}

EventTracer* chosen = nullptr;
KernelRuntimeContext own(chosen);
torch::executor::EventTracerDebugLogLevel level = EventTracerDebugLogLevel::kIntermediateOutputs;
"""


@pytest.mark.parametrize("tracing", ["0", "1"])
def test_a_backend_that_traces_is_spelled_as_there(tmp_path: Path, tracing: str) -> None:
    flags = (
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        f"-DTORCHETTE_EVENT_TRACER={tracing}",
    )
    run(CXX, *flags, f"-I{headers(tmp_path)}", f"-I{ROOT}", "-xc++", "-", input=BACKEND)


def headers(folder: Path) -> Path:
    run("cmake", f"-DDESTINATION={folder}", "-P", COMPAT / "executorch.cmake")
    return folder


def test_every_header_stands_by_itself(tmp_path: Path) -> None:
    if shutil.which(CXX) is None or shutil.which("cmake") is None:
        pytest.skip("no compiler or no cmake")
    found = sorted(path.relative_to(tmp_path).as_posix() for path in headers(tmp_path).rglob("*.h"))
    assert len(found) > 30 and "executorch/runtime/executor/program.h" in found
    lines = [(tmp_path / name).read_text().count("\n") for name in found]
    assert set(lines) == {3}, "a header of the compatibility folder only leads elsewhere"
    found.remove("executorch/extension/aten_util/make_aten_functor_from_et_functor.h")  # needs torch's
    # each target once; all of them in one file, whatever the order
    targets = {(tmp_path / name).read_text(): name for name in found}
    for includes in ([*reversed(found)], *([name] for name in targets.values())):
        text = "".join(f"#include <{name}>\n" for name in includes)
        done = subprocess.run(
            [
                CXX,
                "-std=c++17",
                "-fsyntax-only",
                "-Werror",
                "-Wall",
                f"-I{tmp_path}",
                f"-I{ROOT}",
                "-xc++",
                "-",
            ],
            input=text,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{includes}\n{done.stderr[-3000:]}"
