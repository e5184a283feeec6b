# SPDX-License-Identifier: BSD-3-Clause
# The Python module under AddressSanitizer: a method keeps alive what it was made of, results outlive what made them.

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import torchette
from tests.kernels.sanitized import build

ROOT = Path(__file__).parents[2]
CALLS = 1000

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sanitized")]

# Nothing but temporaries between the file and the result; bytes of the file go as soon as nobody holds them.
SCRIPT = """
import gc, importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("torchette.runtime._native", {module!r})
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])

import numpy as np
from torchette.runtime import Runtime
assert "torch" not in sys.modules

path, x, results = pathlib.Path({file!r}), np.ones((1, 64), np.float32), []
for call in range({calls}):
    results += Runtime.get().load_program(path.read_bytes()).load_method("forward").execute([x * call])
    if call % 100 == 0:
        gc.collect()
        method = Runtime.get().load_program(path.read_bytes()).load_method("forward")
        assert (method.execute([x * call])[0] == results[-1]).all()
np.save({results!r}, np.concatenate(results))
"""


def library() -> str:
    """libasan, which must come before everything else in a process whose main program was built without it."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or sys.platform != "linux":
        pytest.skip("AddressSanitizer is preloaded on Linux with a C++ compiler only")
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True)
    path = found.stdout.strip()
    if not os.path.isabs(path):
        pytest.skip(f"{compiler} brings no libasan.so")
    return path


def python(code: str) -> subprocess.CompletedProcess:
    # Python keeps small objects in pools of its own, where the sanitizer does not see them come and go.
    env = {
        **os.environ, "LD_PRELOAD": library(), "PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT),
        "ASAN_OPTIONS": "detect_leaks=0",
    }  # fmt: skip
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


@pytest.fixture(scope="module")
def module() -> Path:
    if python("pass").returncode:
        pytest.skip("libasan cannot be preloaded here")
    return build("_native", python=True)


def test_the_sanitizer_sees_memory_of_python() -> None:
    done = python("import ctypes; ctypes.string_at(ctypes.addressof(ctypes.create_string_buffer(8)), 4096)")
    assert done.returncode and "AddressSanitizer" in done.stderr


def test_a_chain_of_temporaries(module: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    file, results = tmp_path / "net.pte", tmp_path / "results.npy"
    torchette.compile(net, (torch.ones(1, 64),)).save(file)
    code = SCRIPT.format(module=str(module), file=str(file), results=str(results), calls=CALLS)
    done = python(code)
    assert done.returncode == 0, done.stderr[-6000:]
    import numpy as np

    with torch.no_grad():
        expected = net(torch.arange(CALLS).unsqueeze(1) * torch.ones(1, 64))
    torch.testing.assert_close(torch.from_numpy(np.load(results)), expected, rtol=1e-4, atol=1e-3)
