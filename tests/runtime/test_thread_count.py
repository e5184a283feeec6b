# SPDX-License-Identifier: BSD-3-Clause
# A method has the number of threads that was set in Python, C or the runner. The test counts the threads of the process.

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from tests.building import BUILD, built, run  # noqa: E402
from torchette.errors import InputError  # noqa: E402
from torchette.exir import ExecutorchBackendConfig  # noqa: E402
from torchette.runtime import Runtime  # noqa: E402

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system lists no threads")

HAS_XNNPACK = Runtime.get().backend_registry.get_option("XnnpackBackend", "library")
PROCESSORS = os.cpu_count() or 1


class Towers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(128, 128), torch.nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.left(x)) @ torch.sigmoid(self.right(x)).t()


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "chains.pte"
    config = ExecutorchBackendConfig(parallel=2)
    model = torchette.compile(Towers().eval(), (torch.ones(32, 128),), backend="portable", config=config)
    path.write_bytes(model.program.buffer)
    return path


@pytest.fixture(scope="module")
def delegated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HAS_XNNPACK:
        pytest.skip("this build has no XNNPACK: ./dev xnnpack")
    from torchette.backends.xnnpack import XnnpackPartitioner
    from torchette.exir import to_edge_transform_and_lower

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(torch.nn.Linear(16, 64).eval(), (torch.ones(2, 16),))
        edge = to_edge_transform_and_lower(exported, partitioner=XnnpackPartitioner())
    path = tmp_path_factory.mktemp("threads") / "delegated.pte"
    path.write_bytes(edge.to_executorch().buffer)
    return path


@pytest.fixture(params=["chains", "delegated"])
def file(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def threads_for(file: Path, count: int) -> int:
    """Returns the number of threads of a method besides the calling thread. A backend uses at most one per processor."""
    return (min(count, PROCESSORS) if file.stem == "delegated" else count) - 1


# Counts the threads of the process, for the programs below.
_COUNT = """
import os, time

def count():
    return len(os.listdir("/proc/self/task"))

def count_after_end(expected):
    # Linux lists a thread for a moment after its join: waits for at most a minute.
    deadline = time.monotonic() + 60
    while count() > expected and time.monotonic() < deadline:
        time.sleep(0.001)
    return count()
"""

# Prints the number of additional threads after each step. Runs in its own process, since a pool may outlive its method.
_PYTHON = (
    _COUNT
    + """
import json, sys
from torchette.runtime import Runtime

runtime = Runtime.get()
load = lambda **more: runtime.load_program(sys.argv[1]).load_method("forward", **more)
steps = {}
before = count()
for step, general, specific in (("default", None, None), ("own", None, 3), ("general", 3, None), ("both", 3, 1)):
    if general is not None:
        runtime.set_num_threads(general)
    method = load(**({} if specific is None else {"threads": specific}))
    steps[step] = count() - before
    del method
    steps[step + " after"] = count_after_end(before) - before
print(json.dumps(steps))
"""
)

_C = (
    _COUNT
    + """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[2])

steps = {}
before = count()
for step, general, specific in (("default", None, None), ("own", None, 3), ("general", 3, None), ("both", 3, 1)):
    module = ctypes.c_void_p()
    assert library.torchette_module_open(sys.argv[1].encode(), 1, ctypes.byref(module)) == 0
    if general is not None:
        assert library.torchette_set_num_threads(ctypes.c_size_t(general)) == 0
    if specific is not None:
        assert library.torchette_module_set_num_threads(module, ctypes.c_size_t(specific)) == 0
    assert library.torchette_method_load(module, b"forward") == 0
    steps[step] = count() - before
    assert library.torchette_set_num_threads(ctypes.c_size_t(0)) == 0x12
    assert library.torchette_module_set_num_threads(module, ctypes.c_size_t(0)) == 0x12
    library.torchette_module_free(module)
    steps[step + " after"] = count_after_end(before) - before
print(json.dumps(steps))
"""
)


@pytest.mark.parametrize("api", ["python", "c"])
def test_method_has_requested_num_threads(api: str, file: Path) -> None:
    """In Python and in C, which calls the functions of the C++ Module."""
    if api == "c":
        built("torchette_shared")
        command = [_C, str(file), str(BUILD / "libtorchette.so")]
    else:
        command = [_PYTHON, str(file)]
    steps = json.loads(run(sys.executable, "-W", "ignore", "-c", *command).stdout)
    three = threads_for(file, 3)
    assert three > 0 or PROCESSORS == 1
    assert steps == {
        "default": threads_for(file, Runtime.get().num_threads),
        "own": three,
        "general": three,
        "both": 0,
        **{f"{step} after": 0 for step in ("default", "own", "general", "both")},
    }


@pytest.mark.parametrize("options, count", [((), 1), (("--cpu_threads", "-1"), 1), (("--cpu_threads=3",), 3)])
def test_runner_has_requested_num_threads(options: tuple[str, ...], count: int, file: Path) -> None:
    command = [built("executor_runner"), "--model_path", file, "--server_mode", "--json", *options]
    with subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as runner:
        assert runner.stdin is not None and runner.stdout is not None
        runner.stdin.write("\n")
        runner.stdin.flush()
        assert '"executions": 1' in runner.stdout.readline()  # loaded and executed
        tasks = len(list(Path(f"/proc/{runner.pid}/task").iterdir()))
        runner.stdin.close()
    assert runner.returncode == 0
    assert tasks == 1 + threads_for(file, count)


def test_backend_option_has_precedence(delegated: Path) -> None:
    program = """
import os, sys
from torchette.runtime import Runtime
runtime = Runtime.get()
registry = runtime.backend_registry
runtime.set_num_threads(2)
assert registry.get_option("XnnpackBackend", "num_threads") == min(2, os.cpu_count())
registry.set_option("XnnpackBackend", num_threads=1)
before = len(os.listdir("/proc/self/task"))
method = runtime.load_program(sys.argv[1]).load_method("forward", threads=2)
assert registry.get_option("XnnpackBackend", "num_threads") == 1
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert run(sys.executable, "-W", "ignore", "-c", program, delegated).stdout == "0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_process_has_its_own_threads(tmp_path: Path) -> None:
    """Its loops run on new threads. The threads of the parent do not exist in the child."""
    path = tmp_path / "layer.pte"
    model = torchette.compile(torch.nn.Linear(512, 512).eval(), (torch.ones(64, 512),))
    path.write_bytes(model.program.buffer)
    program = """
import os, sys
import numpy as np
from torchette.runtime import Runtime
method = Runtime.get().load_program(sys.argv[1]).load_method("forward", threads=3)
x = np.random.default_rng(1).standard_normal((64, 512), dtype=np.float32)
expected = np.array(method.execute([x])[0])
for _ in range(20):
    child = os.fork()
    if child == 0:
        before = len(os.listdir("/proc/self/task"))
        same = all(np.array_equal(method.execute([x])[0], expected) for _ in range(20))
        os._exit(0 if same and (before, len(os.listdir("/proc/self/task"))) == (1, 3) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    run(sys.executable, "-W", "ignore", "-c", program, path)


@pytest.mark.parametrize("count", [0, -1, 2**31, 1.5, True, "two"])
def test_invalid_num_threads_is_refused(count: object, chains: Path) -> None:
    runtime = Runtime.get()
    before = runtime.num_threads
    with pytest.raises(InputError, match=f"threads must be an integer of at least 1, got {count!r}"):
        runtime.set_num_threads(count)
    with pytest.raises(InputError, match=f"threads must be an integer of at least 1, got {count!r}"):
        runtime.load_program(chains).load_method("forward", threads=count)
    assert runtime.num_threads == before


@pytest.mark.parametrize("count", ["0", "-2", "many", ""])
def test_runner_refuses_invalid_num_threads(count: str, chains: Path) -> None:
    done = run(built("executor_runner"), "--model_path", chains, f"--cpu_threads={count}", status=2)
    assert f"--cpu_threads must be an integer of at least 1, got {count}" in done.stderr
