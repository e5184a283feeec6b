# SPDX-License-Identifier: BSD-3-Clause
# The Python module with AddressSanitizer: a method keeps its program alive, and results outlive the method.

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchette
from tests.building import built
from tests.kernels.sanitized import python

CALLS = 1000

pytestmark = [pytest.mark.safety, pytest.mark.xdist_group("sanitized")]

# All objects between the file and the result are temporaries. The bytes of a file are freed with the last reference.
SCRIPT = """
import gc, pathlib, sys
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


def test_sanitizer_detects_errors_in_python_memory() -> None:
    done = python("import ctypes; ctypes.string_at(ctypes.addressof(ctypes.create_string_buffer(8)), 4096)")
    assert done.returncode and "AddressSanitizer" in done.stderr


def test_native_exception_becomes_python_exception() -> None:
    code = """
from torchette.errors import FormatError
from torchette.runtime import Runtime
try:
    Runtime.get().load_program(b"no program")
except FormatError as error:
    print("FormatError")
"""
    done = python(code, built("_native", tree="asan"))
    assert (done.returncode, done.stdout) == (0, "FormatError\n"), done.stderr[-6000:]


def test_results_outlive_temporaries(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    file, results = tmp_path / "net.pte", tmp_path / "results.npy"
    torchette.compile(net, (torch.ones(1, 64),)).save(file)
    code = SCRIPT.format(file=str(file), results=str(results), calls=CALLS)
    done = python(code, built("_native", tree="asan"))
    assert done.returncode == 0, done.stderr[-6000:]
    import numpy as np

    with torch.no_grad():
        expected = net(torch.arange(CALLS).unsqueeze(1) * torch.ones(1, 64))
    torch.testing.assert_close(torch.from_numpy(np.load(results)), expected, rtol=1e-4, atol=1e-3)
