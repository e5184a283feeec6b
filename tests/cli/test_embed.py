# SPDX-License-Identifier: BSD-3-Clause
# `torchette embed`: the sources are C99 and C++17, and run with the runtime from constant memory and the pools only,
# with a separate array for each planned memory.

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import torchette
from torchette.cli import main
from torchette.devtools.device_memory import bills
from torchette.devtools.inspect import describe
from torchette.exir import ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "dev"
CC, CXX = os.environ.get("CC", "gcc"), os.environ.get("CXX", "g++")

pytestmark = [
    pytest.mark.skipif(shutil.which(CC) is None or shutil.which(CXX) is None, reason="no compiler"),
    pytest.mark.usefixtures("portable_plan"),
]

MAIN = """\
#include <cstdio>
#include <cstdlib>
#include "net.hpp"

using namespace torchette;

static bool armed = false;  // from now on nothing may be allocated
extern "C" void* __libc_malloc(size_t);
extern "C" void* malloc(size_t size) {
  if (armed) abort();
  return __libc_malloc(size);
}

/// 0 the caller's, else which planned array holds the tensor.
static int array_of(const Value& value) {
  const auto* p = static_cast<const uint8_t*>(value.to_tensor().const_data_ptr());
  const size_t size = value.to_tensor().nbytes();
  if (p >= net_forward_planned_1 && p + size <= net_forward_planned_1 + NET_FORWARD_PLANNED_1_SIZE) return 1;
  if (p >= net_forward_planned_2 && p + size <= net_forward_planned_2 + NET_FORWARD_PLANNED_2_SIZE) return 2;
  return 0;
}

static bool written(const uint8_t* array, size_t size) {
  for (size_t i = 0; i < size; ++i)
    if (array[i] != 0) return true;
  return false;
}

int main() {
  static float input[] = {INPUT};
  printf(" ");  // the C library takes its buffer
  armed = true;
  auto loader = net::program();
  auto program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return 1;
  net::forward_memory memory;
  auto method = program->load_method("forward", &memory.manager);
  if (!method.ok()) return 2;
  TensorImpl impl = *method->get_input(0).to_tensor().unsafe_impl();
  impl.data = input;
  if (method->set_input(Value(Tensor(&impl)), 0) != Error::Ok || method->execute() != Error::Ok) return 3;
  const Tensor out = method->get_output(0).to_tensor();
  printf("%d %d %d %d\\n", array_of(method->get_input(0)), array_of(method->get_output(0)),
         written(net_forward_planned_1, NET_FORWARD_PLANNED_1_SIZE),
         written(net_forward_planned_2, NET_FORWARD_PLANNED_2_SIZE));
  printf("%zu %zu\\n", memory.method.used_size(), sizeof(net_forward_method));
  for (ptrdiff_t i = 0; i < out.numel(); ++i) printf("%.9g ", out.const_data_ptr<float>()[i]);
}
"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 512)
        self.down = torch.nn.Linear(512, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.up(x))
        return torch.softmax(y, -1) * y


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.returncode}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torchette.Model:
    """net.pte in the working folder: two memories, inputs and outputs planned."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torchette.compile(
        Net().eval(),
        (torch.ones(4, 16),),
        config=ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(arenas={"SRAM": "2K", "DRAM": None})
        ),
    )
    model.save("net.pte")
    return model


@pytest.mark.parametrize("incbin", [[], ["--incbin"]], ids=["array", "incbin"])
def test_runs_from_constant_memory_and_pools(model: torchette.Model, incbin: list[str]) -> None:
    libraries = [BUILD / f"libtorchette_{name}.a" for name in ("extension", "core", "kernels", "core")]
    if not all(library.exists() for library in libraries):
        pytest.skip("not built by ./dev setup")
    assert main(["embed", "net.pte", "-o", "made", *incbin]) == 0
    x = np.random.default_rng(0).standard_normal((4, 16), np.float32)
    Path("main.cpp").write_text(MAIN.replace("INPUT", ",".join(map(str, x.ravel()))))
    sources = sorted(Path("made").glob("*.[cS]"))
    assert len(sources) == 1 + bool(incbin)
    for source in sources:
        run(CC, *(["-std=c99"] if source.suffix == ".c" else []), "-Imade", "-Wa,-Imade", "-c", source)
    objects = [Path(source.name).with_suffix(".o") for source in sources]
    flags = ["-std=c++17", f"-I{ROOT}", f"-I{BUILD / 'generated'}", "-Imade"]
    run(CXX, *flags, "main.cpp", *objects, *libraries, "-o", "main")
    places, used, numbers = run("./main").splitlines()
    method = describe("net.pte").methods[0]
    ports = [method.values[port.index].tensor for port in (*method.inputs, *method.outputs)]
    # inputs and outputs are in the arrays of the memory plan, and both arrays were written
    assert [int(word) for word in places.split()] == [*(port.memory_id for port in ports if port), 1, 1]
    used_bytes, pool_bytes = map(int, used.split())
    assert used_bytes == pool_bytes
    actual = np.array(numbers.split(), np.float32).reshape(4, 16)
    np.testing.assert_array_equal(actual, model(x))
    # the program is in read-only memory, and is aligned
    symbol = re.search(r"^([0-9a-f]+) ([A-Za-z]) net_program$", run("nm", "main"), re.M)
    assert symbol is not None and symbol[2] == "R" and int(symbol[1], 16) % 16 == 0


def test_the_sources_are_c99_and_cpp17_without_a_warning(model: torchette.Model) -> None:
    assert (
        main(["embed", "net.pte", "-o", "made", "--target", "cortex-m4", "--section", "planned_1=.dtcm"]) == 0
    )
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Imade", "-c", "made/net.c", "-o", "net.o"]
    run(CXX, "-x", "c++", "-std=c++17", *strict)
    run(CC, "-std=c99", *strict)
    sections = run("objdump", "-t", "net.o")
    sizes = {name: size for size, name in re.findall(r"\s([0-9a-f]+) (net_\w+)$", sections, re.M)}
    assert re.search(r"\.dtcm\s+[0-9a-f]+ net_forward_planned_1$", sections, re.M)
    (bill,) = bills("net.pte", "cortex-m4")
    assert int(sizes["net_forward_method"], 16) == bill.method
    assert int(sizes["net_forward_planned_1"], 16) == bill.planned[0]
    assert int(sizes["net_program"], 16) == Path("net.pte").stat().st_size


def test_every_method_has_separate_pools(tmp_path: Path) -> None:
    methods = {name: (torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),)) for name in ("run", "run_method")}
    torchette.compile(methods).save(tmp_path / "2 nets.pte")
    assert main(["embed", str(tmp_path / "2 nets.pte"), "-o", str(tmp_path)]) == 0
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-std=c99", "-c", tmp_path / "m2_nets.c"]
    run(CC, *strict, "-o", tmp_path / "net.o")
    symbols = set(re.findall(r" [A-Z] (m2_nets_\w+)$", run("nm", tmp_path / "net.o"), re.M))
    pools = {f"m2_nets_{name}_{pool}" for name in methods for pool in ("method", "temp", "planned_1")}
    assert symbols == {"m2_nets_program", *pools}
    header = (tmp_path / "m2_nets.h").read_text()
    assert len(re.findall("^extern .*uint8_t", header, re.M)) == len(symbols)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--section", "stack=.dtcm"], "unknown pool 'stack'"),
        (["--section", "method"], "POOL=SECTION"),
        (["--temp", "some"], "most or least"),
        (["--target", "z80"], "no target 'z80'"),
    ],
)
def test_mistakes_are_explained(
    model: torchette.Model, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "net.pte", "-o", "made", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("made").exists()


DYNAMIC_MAIN = """\
#include <cstdio>
#include "net.hpp"

using namespace torchette;

static float input[64 * 8];

int main() {
  auto loader = net::program();
  auto program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return 1;
  net::forward_memory memory;
  auto method = program->load_method("forward", &memory.manager);
  if (!method.ok()) return 2;
  for (size_t i = 0; i < sizeof(input) / sizeof(float); ++i) input[i] = 0.01f * static_cast<float>(i);
  for (const int rows : {64, 5, 64}) {
    TensorImpl impl = *method->get_input(0).to_tensor().unsafe_impl();
    int32_t sizes[] = {rows, 8};
    impl.sizes = sizes;
    impl.numel = rows * 8;
    impl.data = input;
    if (method->set_input(Value(Tensor(&impl)), 0) != Error::Ok) return 3;
    if (method->execute() != Error::Ok) return 4;
    const Tensor out = method->get_output(0).to_tensor();
    printf("%d %.5f\\n", static_cast<int>(out.size(0)), out.const_data_ptr<float>()[out.numel() - 1]);
  }
}
"""


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 24), torch.nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        return self.down(torch.tanh(y) * y.sum(0))


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torchette.Model:
    """net.pte in the working folder: 1 to 64 rows; its tensors are allocated at run time."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = ({0: torch.export.Dim("rows", min=1, max=64)},)
    model = torchette.compile(Rows().eval(), (torch.ones(4, 8),), dynamic_shapes=sizes)
    model.save("net.pte")
    return model


def test_dynamic_tensors_have_pool_of_maximum_size(rows: torchette.Model) -> None:
    libraries = [BUILD / f"libtorchette_{name}.a" for name in ("extension", "core", "kernels", "core")]
    if not all(library.exists() for library in libraries):
        pytest.skip("not built by ./dev setup")
    Path("main.cpp").write_text(DYNAMIC_MAIN)
    (bill,) = bills("net.pte")
    assert bill.dynamic is not None and bill.dynamic > 64 * 24 * 4
    flags = ["-std=c++17", f"-I{ROOT}", f"-I{BUILD / 'generated'}", "-Imade", "-x", "c++"]

    def build(*more: str) -> None:
        assert main(["embed", "net.pte", "-o", "made", *more]) == 0
        run(CXX, *flags, "main.cpp", "made/net.c", "-x", "none", *libraries, "-o", "main")

    build()
    x = 0.01 * np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
    last = {count: np.asarray(rows(x[:count])).ravel()[-1] for count in (64, 5)}
    lines = [line.split() for line in run("./main").splitlines()]
    assert [int(line[0]) for line in lines] == [64, 5, 64]
    np.testing.assert_allclose([float(line[1]) for line in lines], [last[64], last[5], last[64]], rtol=1e-4)
    build("--dynamic", str(bill.dynamic - 16))
    assert subprocess.run(["./main"], capture_output=True).returncode == 4


def test_unbounded_tensors_require_dynamic_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ({0: torch.export.Dim("rows", min=1)},)
    torchette.compile(Rows().eval(), (torch.ones(4, 8),), dynamic_shapes=sizes).save("net.pte")
    assert main(["embed", "net.pte", "-o", "made", "--target", "cortex-m4", "--temp", "0"]) == 2
    text = capsys.readouterr().err
    assert "tensors without a maximum size" in text and "--dynamic" in text
    assert main(["embed", "net.pte", "-o", "made", "--temp", "0", "--dynamic", "4096"]) == 0
    assert "#define NET_FORWARD_DYNAMIC_SIZE 4096" in Path("made/net.h").read_text()
