# SPDX-License-Identifier: BSD-3-Clause
# The memory bill for 32-bit devices, checked by a 32-bit loader: the core compiled for 32 bits loads every reference
# model with exactly the billed bytes of method memory, and fails with one byte less. Needs no 32-bit C library, which
# is rarely installed.

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from tests.building import BUILD, CXX, ROOT, run
from tests.models import artifacts
from tests.models.artifacts import each_kind_of_model
from torchette.devtools.device_memory import bills
from torchette.runtime import _native

MEMORY_ALLOCATION_FAILED = 0x21

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not (BUILD / "generated").exists(),
    reason="requires x86-64 Linux and the build of ./dev setup",
)


@pytest.fixture(scope="session")  # the tests of each model are a separate group of pytest-xdist
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load_32_bit")
    (folder / "gnu").mkdir()
    (folder / "gnu" / "stubs-32.h").touch()  # missing from the headers of the 64-bit C library
    kernels = "".join(f'KERNEL("{name}", "{signature}")\n' for name, signature in _native.operators())
    (folder / "kernels.inc").write_text(kernels)
    headers = Path("/usr/include") / run(CXX, "-print-multiarch").stdout.strip()
    sources = [
        path for path in sorted((ROOT / "torchette/runtime").glob("*.cpp")) if path.stem != "platform_posix"
    ]
    # -malign-double aligns 8-byte types to 8 bytes, as on other 32-bit machines.
    flags = (
        "-std=c++17 -O1 -m32 -malign-double -ffreestanding -fno-exceptions -fno-rtti -fno-threadsafe-statics"
    )
    flags += " -fno-stack-protector -fno-pic -no-pie -nostdlib -static -DTORCHETTE_LOG_LEVEL=0"
    includes = [
        *("-I", ROOT, "-I", BUILD / "generated", "-I", folder, "-isystem", headers),
        *(word for version in (headers / "c++").glob("*") for word in ("-isystem", version)),
    ]
    command = [CXX, *flags.split(), *includes, Path(__file__).with_name("load_32_bit.cpp"), *sources]
    done = subprocess.run([*command, "-o", folder / "loader"], capture_output=True, text=True)
    if "error" in done.stderr and "torchette/" not in done.stderr:
        pytest.skip(f"{CXX} cannot compile for 32 bits: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr[-4000:]
    try:
        subprocess.run([folder / "loader", "nothing", "0"], check=False)
    except OSError:
        pytest.skip("this kernel does not run 32-bit programs")
    return folder / "loader"


@each_kind_of_model
def test_the_bill_for_32_bits_is_exact(name: str, loader: Path, tmp_path: Path) -> None:
    file = artifacts.our_file(name)
    (tmp_path / "model.pte").write_bytes(file)
    (bill,) = bills(file, "cortex-m4", temp=False)

    def load(method: int, *planned: int) -> int:
        command = [loader, tmp_path / "model.pte", *map(str, (method, *planned))]
        return subprocess.run(command, check=False).returncode

    assert load(bill.method, *bill.planned) == 0
    assert load(bill.method - 1, *bill.planned) == MEMORY_ALLOCATION_FAILED
    assert load(bill.method, *(size - 1 for size in bill.planned)) == MEMORY_ALLOCATION_FAILED
