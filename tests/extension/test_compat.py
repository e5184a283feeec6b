# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's C++ names: programs and kernels that are written for ExecuTorch's headers compile with Torchette's headers and run.
# Every compatibility header can be included separately.

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.building import BUILD, CXX, LAUNCHER, ROOT, built, program, run

COMPAT = ROOT / "torchette" / "extension" / "compat"


def test_a_program_for_executorch_runs_a_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torchette.exir import to_edge

    torch.manual_seed(0)
    # The convolution uses scratch memory.
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.GELU(), torch.nn.Linear(4, 3)).eval()
    x = torch.ones(2, 3, 6, 6)
    program = to_edge(torch.export.export(module, (x,))).to_executorch()
    program.save(str(tmp_path / "model.pte"))
    printed = run(built("torchette_tutorial"), tmp_path / "model.pte").stdout
    expected = module(x).detach().numpy().ravel()
    np.testing.assert_allclose([float(line) for line in printed.split()], expected, rtol=1e-5, atol=1e-6)
    # Errors are values and messages; a failed check ends the program.
    assert "no program: 0x23" in run(built("torchette_tutorial"), __file__, status=1).stderr
    assert "no loader: 0x22" in run(built("torchette_tutorial"), tmp_path / "none", status=-6).stderr
    # Files of ExecuTorch's compiler also run.
    theirs = pytest.importorskip("executorch.exir")
    peer = theirs.to_edge(torch.export.export(module, (x,))).to_executorch()
    (tmp_path / "peer.pte").write_bytes(peer.buffer)
    printed = run(built("torchette_tutorial"), tmp_path / "peer.pte", "forward").stdout
    np.testing.assert_allclose([float(line) for line in printed.split()], expected, rtol=1e-5, atol=1e-6)


# The output of call_kernel.cpp: a direct call, and calls as an operator with its signature, a smaller input and another dtype.
SCALED = "3 5 7 13.5 16.5 19.5 2 3 4 5 6 7 1 T?Tst 1 1 2 2 0.5 1.5 2.5 3.5 4.5 5.5 1 "


def test_executorch_kernel_runs_on_torchette_tensors() -> None:
    assert run(built("torchette_call_kernel")).stdout == SCALED


def with_torch(source: str, folder: Path, *options: str) -> str:
    """Compiles a program with the headers of the installed torch and returns its output."""
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
@pytest.mark.parametrize("option", ["-DTORCHETTE_ATEN", "-DUSE_ATEN_LIB"])
def test_same_kernel_runs_on_torch_tensors(option: str, tmp_path: Path) -> None:
    assert with_torch("call_kernel.cpp", tmp_path, option) == SCALED


@pytest.mark.slow
def test_torch_and_torchette_tensors_share_memory(tmp_path: Path) -> None:
    assert with_torch("aten_test.cpp", tmp_path) == "15 checks, 0 failures\n"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Returns a model with one float input of sizes {2, 3}, and the output of eager mode for ones."""
    torch = pytest.importorskip("torch")
    from torchette.exir import to_edge

    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).eval()
    path = tmp_path_factory.mktemp("pages") / "net.pte"
    to_edge(torch.export.export(module, (torch.ones(2, 3),))).to_executorch().save(str(path))
    return path, module(torch.ones(2, 3)).detach().numpy().ravel()


PAGES = "torchette_compat_pages"
LIBRARIES = pytest.mark.parametrize(
    "program", [PAGES, pytest.param(f"{PAGES}_shared", marks=pytest.mark.gate)]
)


def page(name: str, *arguments: str | Path, program: str = PAGES, **more: int) -> list[str]:
    """Returns the lines that tests/extension/compat_pages.cpp prints for a page."""
    return run(built(program), name, *arguments, **more).stdout.splitlines()


def same(lines: list[str], expected: np.ndarray) -> None:
    np.testing.assert_allclose([float(line) for line in lines], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["low_level", "using_cpp", "module"])
def test_page_program_matches_eager(net: tuple[Path, np.ndarray], name: str) -> None:
    same(page(name, net[0]), net[1])


def test_tensor_page_functions(net: tuple[Path, np.ndarray]) -> None:
    *numbers, created, resized, filled = page("tensors", net[0])
    same(numbers, net[1])
    assert created == "3.14 42 6 7 0 2 1"  # writing to a view changes the source, writing to a clone does not
    assert (resized, filled) == ("11110", "42 3.5")


@LIBRARIES
def test_dynamic_cast_returns_the_etdump_tracer(
    net: tuple[Path, np.ndarray], tmp_path: Path, program: str
) -> None:
    from torchette.format import etdump

    page("profile", net[0], tmp_path / "trace.etdp", program=program)
    assert "Method::execute" in str(etdump.load(tmp_path / "trace.etdp"))


def test_bundled_programs_run_and_compare(net: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torchette.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
    from torchette.devtools.bundled_program.core import BundledProgram
    from torchette.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer

    from torchette.format import pte

    expected = torch.from_numpy(net[1].reshape(2, 4))
    cases = [MethodTestCase([torch.ones(2, 3)], [output]) for output in (expected, expected + 1)]
    bundle = BundledProgram(pte.load_file(net[0]), [MethodTestSuite("forward", cases)])
    (tmp_path / "net.bpte").write_bytes(serialize_from_bundled_program_to_flatbuffer(bundle))
    *numbers, module, pointer = page("bundled", net[0], tmp_path / "net.bpte")
    same(numbers, net[1])
    assert module == "100"  # case 0 matches, case 1 differs, case 2 does not exist
    # A pointer without a size is rejected until the file has been checked. A damaged file is rejected.
    assert pointer == "111111"


@LIBRARIES
def test_register_pal_overrides_the_platform_of_the_program(
    net: tuple[Path, np.ndarray], program: str
) -> None:
    assert page("platform", net[0], program=program) == ["0 1", "1 500 24", program]


def test_first_profiler_blocks_have_executorch_layout(net: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    blocks, size, *offsets = map(int, page("profiler", net[0], tmp_path / "profile")[0].split())
    contents = (tmp_path / "profile").read_bytes()
    # A header, 1024 events, 32 allocators and 1024 allocations: the layout of ExecuTorch's header.
    assert (blocks, offsets) == (2, [64, 64 + 1024 * 56, 64 + 1024 * 56 + 32 * 40])
    assert size == offsets[2] + 1024 * 8 and len(contents) == blocks * size
    block = contents[size:]
    name, version, *counts = struct.unpack_from("32s7I", block)
    assert (name.rstrip(b"\0"), version) == (b"my block", 1)
    capacity, used = counts[::2], counts[1::2]
    assert capacity == [1024, 32, 1024] and used[1] >= 1 and used[2] >= 1
    events = list(struct.iter_unpack("32siIQQ", block[64 : 64 + 56 * used[0]]))
    names = [event[0].rstrip(b"\0").decode() for event in events]
    assert names[:2] == ["whole program", "inner"] and "Method::execute" in names
    assert events[1][1:3] == (2, 7) and events[0][1] == -1
    assert all(0 < start <= end for *_, start, end in events)
    assert events[0][3] <= events[1][3] <= events[1][4] <= events[0][4]
    assert struct.unpack_from("32sQ", block, offsets[1]) == (b"my allocator".ljust(32, b"\0"), 0)
    assert struct.unpack_from("II", block, offsets[2]) == (0, 96)


def test_module_accepts_a_data_file_path(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torchette.exir import ExecutorchBackendConfig, to_edge

    torch.manual_seed(2)
    module = torch.nn.Linear(3, 2).eval()
    edge = to_edge(torch.export.export(module, (torch.ones(2, 3),)))
    program = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
    program.save(str(tmp_path / "net.pte"))
    program.write_tensor_data_to_file(str(tmp_path))
    (data,) = tmp_path.glob("*.ptd")
    same(page("data_file", tmp_path / "net.pte", data), module(torch.ones(2, 3)).detach().numpy().ravel())
    page("data_file", tmp_path / "net.pte", tmp_path / "none.ptd", status=1)


def test_functions_on_dim_orders_and_dtypes(net: tuple[Path, np.ndarray]) -> None:
    torch = pytest.importorskip("torch")
    strides, of_empty, table = page("kernel_functions", net[0])
    expected = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last).stride()
    assert strides == " ".join(map(str, expected))
    assert of_empty == " ".join(map(str, torch.empty(2, 0, 3).stride())) + " (2, 3, 4, 5)"
    names = "Bool:bool Byte:uint8 Char:int8 Short:int16 Int:int32 Long:int64 Half:float16 BFloat16:bfloat16"
    dtypes = dict(pair.split(":") for pair in f"{names} Float:float32 Double:float64".split())
    answers = iter(table.split())
    for a in dtypes.values():
        for b in dtypes.values():
            a_type, b_type = getattr(torch, a), getattr(torch, b)
            answer = next(answers)
            assert getattr(torch, dtypes[answer[:-1]]) == torch.promote_types(a_type, b_type)
            assert (answer[-1] == "+") == torch.can_cast(a_type, b_type)


NAMES = ROOT / "tests" / "extension"
FLAGS = ("-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror")


def test_every_public_name_exists(tmp_path: Path) -> None:
    run(CXX, *FLAGS, f"-I{headers(tmp_path)}", f"-I{ROOT}", NAMES / "compat_names.cpp")


@pytest.mark.parametrize("source", ["compat_names.cpp", "compat_pages.cpp"])
def test_executorch_headers_have_the_same_names(source: str) -> None:
    """The test programs compile with ExecuTorch's headers, so the names are ExecuTorch's."""
    include = Path(pytest.importorskip("executorch.version").__file__).parent / "include"
    if not include.is_dir():
        pytest.skip("this ExecuTorch comes without headers")
    flags = ("-std=c++17", "-fsyntax-only", "-w", "-DC10_USING_CUSTOM_GENERATED_MACROS")
    portable = include / "executorch/runtime/core/portable_type/c10"
    run(CXX, *flags, "-isystem", include, "-isystem", portable, NAMES / source)


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


def test_module_has_executorch_names(tmp_path: Path) -> None:
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
def test_tracing_backend_has_executorch_names(tmp_path: Path, tracing: str) -> None:
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


@pytest.mark.parametrize("part", range(3))
def test_every_header_compiles_separately(tmp_path: Path, part: int) -> None:
    if shutil.which(CXX) is None or shutil.which("cmake") is None:
        pytest.skip("no compiler or no cmake")
    names = sorted(path.relative_to(tmp_path).as_posix() for path in headers(tmp_path).rglob("*.h"))
    assert len(names) > 30 and "executorch/runtime/executor/program.h" in names
    lines = [(tmp_path / name).read_text().count("\n") for name in names]
    assert set(lines) == {3}, "a header of the compatibility folder must only include another header"
    for name in ("aten_bridge", "make_aten_functor_from_et_functor"):  # require the headers of torch
        names.remove(f"executorch/extension/aten_util/{name}.h")
    # Include all headers in one file in reverse order, and include each distinct header separately.
    targets = {(tmp_path / name).read_text(): name for name in names}
    for includes in ([*reversed(names)], *([name] for name in targets.values()))[part::3]:
        text = "".join(f"#include <{name}>\n" for name in includes)
        (tmp_path / "includes.cpp").write_text(text)
        # relative paths, which a compiler cache finds in another folder
        flags = [
            "-std=c++17",
            "-Werror",
            "-Wall",
            "-I.",
            f"-I{ROOT}",
            "-c",
            "includes.cpp",
            "-o",
            "includes.o",
        ]
        done = subprocess.run([*LAUNCHER, CXX, *flags], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{includes}\n{done.stderr[-3000:]}"


def test_custom_named_data_map(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torchette.exir import ExecutorchBackendConfig, to_edge

    exported = torch.export.export(torch.nn.Linear(3, 2, bias=False).eval(), (torch.ones(1, 3),))
    net = to_edge(exported).to_executorch(ExecutorchBackendConfig(external_constants=True))
    net.save(tmp_path / "net.pte")
    built("torchette_static")
    runner = program(
        tmp_path / "own",
        [ROOT / "tests/extension/own_data_map.cpp"],
        *("-std=c++17", "-O0", f"-I{headers(tmp_path)}", f"-I{ROOT}"),
        link=[BUILD / "libtorchette.a"],
    )
    assert run(runner, tmp_path / "net.pte", "3").stdout == "321 327\n"
    error = run(runner, tmp_path / "net.pte", "4").stdout
    assert error == f"error {0x24}\n"  # InvalidExternalData
