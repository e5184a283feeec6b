# SPDX-License-Identifier: BSD-3-Clause
# If a driver computes wrong results, loses the device or has no memory, no result is wrong and the process continues. The driver
# is lavapipe with the layer faults.cpp.
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.backends.vulkan.cases import CASES
from tests.backends.vulkan.device import needs_device
from tests.backends.vulkan.networks import networks
from tests.backends.vulkan.test_operators import Calls, inputs_of
from tests.building import BUILD, ROOT, program
from torchette.backends.vulkan import VulkanPartitioner
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

pytestmark = needs_device
SPIRV = BUILD / "generated/torchette/backends/vulkan"

# In: the folder of a network. Out: the warnings, whether it ran on the portable kernels, the difference from eager.
_RUN = """
import json, sys, warnings
import numpy as np
from torchette.runtime import Runtime
folder, warnings_text = sys.argv[1], []
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    method = Runtime.get().load_program(folder + "/net.pte").load_method("forward")
values = np.load(folder + "/values.npz")
got = np.asarray(method.execute([values["given"]])[0])
print(json.dumps({"warnings_text": [str(one.message) for one in told], "off": float(abs(got - values["want"]).max()),
    "quarantined": Runtime.get().backend_registry.get_option("VulkanBackend", "quarantined")}))
"""


@pytest.fixture(scope="session")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with the layer's library and manifest."""
    folder = tmp_path_factory.mktemp("layer")
    program(
        folder / "libfaults.so",
        [Path(__file__).with_name("faults.cpp")],
        "-fPIC",
        "-std=c++17",
        "-O1",
        link=["-shared"],
    )
    manifest = {"name": "VK_LAYER_TORCHETTE_faults", "type": "GLOBAL", "library_path": "./libfaults.so", "api_version": "1.3.0",
                "implementation_version": "1", "description": "faults"}  # fmt: skip
    (folder / "faults.json").write_text(json.dumps({"file_format_version": "1.1.2", "layer": manifest}))
    return folder


def run(code: str, layer: Path, cache: Path, *arguments: Path | str, **variables: str) -> dict:
    env = {**os.environ, "VK_LAYER_PATH": str(layer), "VK_INSTANCE_LAYERS": "VK_LAYER_TORCHETTE_faults",
           "TORCHETTE_CACHE": str(cache), "PYTHONPATH": str(ROOT), **variables}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def lower(module: torch.nn.Module, inputs: tuple, folder: Path, fallback: bool = True, **options) -> None:
    edge = to_edge_transform_and_lower(
        torch.export.export(module, inputs), partitioner=VulkanPartitioner(options)
    )
    (folder / "net.pte").write_bytes(
        edge.to_executorch(ExecutorchBackendConfig(portable_fallback=fallback)).buffer
    )
    np.savez(folder / "values.npz", given=inputs[0].numpy(), want=module(*inputs).detach().numpy())


@pytest.mark.parametrize("half", [False, True])
def test_wrong_shader_is_not_used(layer, tmp_path, half):
    module, inputs = networks()["vision"]
    lower(module, inputs, tmp_path, force_fp16=half)
    shader = "softmax_half" if half else "softmax"
    corrupted = {"TORCHETTE_FAULT_SHADERS": str(SPIRV / f"{shader}.spv")}
    cache = tmp_path / "cache"
    for variables in (corrupted, {}):  # the second process reads the result of the first
        report = run(_RUN, layer, cache, tmp_path, **variables)
        (warnings_text,) = report["warnings_text"]
        assert f"Vulkan's shader {shader} computes wrong results with the driver of llvmpipe" in warnings_text
        assert "portable kernels" in warnings_text and report["off"] < 1e-5
    damaged = next(cache.glob("*.verdicts"))
    content = bytearray(damaged.read_bytes())
    content[-40] ^= 1
    damaged.write_bytes(content)
    report = run(_RUN, layer, cache, tmp_path)  # a damaged file is ignored
    assert report["warnings_text"] == [] and report["off"] < (2e-2 if half else 1e-4)
    assert report["quarantined"] == ""


def test_device_without_float16_arithmetic_uses_the_half_shader(layer, tmp_path):
    module, inputs = networks()["excited"]
    lower(module, inputs, tmp_path, fallback=False, force_fp16=True)
    both = ":".join(str(SPIRV / f"convolution_tiled_{variant}.spv") for variant in ("half", "packed"))
    for fault, shaders, quarantined in (
        ("storage", "", ""),
        ("storage", both, "convolution_tiled_half"),
        ("none", both, "convolution_tiled_packed"),
    ):
        report = run(_RUN, layer, tmp_path / f"{fault}{len(shaders)}", tmp_path, TORCHETTE_FAULT=fault, TORCHETTE_FAULT_SHADERS=shaders)  # fmt: skip
        assert report["quarantined"] == quarantined and report["off"] < 2e-2


def test_without_a_fallback_it_runs_on_the_processor(layer, tmp_path):
    module, inputs = networks()["perceptron"]
    lower(module, inputs, tmp_path, fallback=False)
    report = run(_RUN, layer, tmp_path / "cache", tmp_path, TORCHETTE_FAULT_SHADERS="all")
    (warnings_text,) = report["warnings_text"]
    assert (
        "runs on the processor: Vulkan's shader" in warnings_text
        and "computes wrong results with the driver" in warnings_text
    )
    assert report["off"] < 1e-5


# The program that uses each shader first.
_SHADERS = {
    "batch_norm": "batch_norm", "causal": "attention causal", "convolution": "conv2d depthwise", "copy": "cat", "cumsum": "cumsum",
    "convolution_sum": "conv2d divided", "convolution_tiled": "conv2d many channels", "excite": "squeeze and excitation",
    "fill": "full_like", "gather": "index_select", "index": "index of two", "scatter": "gather", "matmul": "mm", "matvec": "linear one row", "normalize": "layer_norm",
    "pointwise": "sigmoid", "pool": "avg_pool2d", "reduce": "sum", "resize": "bilinear", "softmax": "softmax",
}  # fmt: skip


def _suffix(name: str) -> str:
    return "_packed" if (SPIRV / f"{name}_packed.spv").exists() else "_half"


@pytest.mark.gate
def test_probe_of_every_shader_detects_a_fault(layer, tmp_path):
    """Corrupts each shader separately, in both variants, for a program that uses it."""
    names = {path.stem.removesuffix("_half").removesuffix("_packed") for path in SPIRV.glob("*.spv")}
    assert names - set(_SHADERS) == {
        "choose",
        "convolution_integer",
        "linear_integer",
        "quantize",
    }  # of test_quantized.py
    for name, case in _SHADERS.items():
        function, shapes = CASES[case]
        inputs = inputs_of(shapes)
        for half in (False, True):
            folder = tmp_path / (name + _suffix(name) * half)
            folder.mkdir()
            lower(Calls(function).eval(), inputs, folder, fallback=False, force_fp16=half)
    code = """
import json, os, sys, warnings
from pathlib import Path
from torchette.runtime import Runtime
seen = {}
for folder in sorted(Path(sys.argv[1]).glob(sys.argv[3])):
    os.environ["TORCHETTE_FAULT_SHADERS"] = f"{sys.argv[2]}/{folder.name}.spv"
    Runtime.get().backend_registry.set_option("VulkanBackend", cache_folder="")
    with warnings.catch_warnings(record=True) as warnings_text:
        warnings.simplefilter("always")
        Runtime.get().load_program(str(folder / "net.pte")).load_method("forward")
    seen[folder.name] = " ".join(str(one.message) for one in warnings_text)
print(json.dumps(seen))
"""
    # Attention, which uses the causal shader, and convolutions, which pack their weights, also use other shaders: another
    # process does not know that they are faulty.
    warnings_by_shader: dict[str, str] = {}
    for names_of_process in ("causal*", "con*", "c[!ao]*", "cop*", "[!c]*"):
        warnings_by_shader |= run(code, layer, tmp_path / "cache", tmp_path, SPIRV, names_of_process)
    assert warnings_by_shader.keys() == {name + half for name in _SHADERS for half in ("", _suffix(name))}
    for name, warnings_text in warnings_by_shader.items():
        assert f"runs on the processor: Vulkan's shader {name} computes wrong results" in warnings_text, (
            name,
            warnings_text,
        )


_LOSES = """
import json, os, sys
import numpy as np
from torchette.errors import TorchetteError
from torchette.runtime import Runtime
program = Runtime.get().load_program(sys.argv[1] + "/net.pte")
registry = Runtime.get().backend_registry
values = np.load(sys.argv[1] + "/values.npz")
def off(method):
    return float(abs(np.asarray(method.execute([values["given"]])[0]) - values["want"]).max())
def error(work):
    try:
        work()
    except TorchetteError as error:
        return str(error)
first = program.load_method("forward")
found = {"before": off(first)}
os.environ["TORCHETTE_FAULT"] = sys.argv[2]
found["during"] = error(lambda: off(first) if sys.argv[2] == "lost" else program.load_method("forward"))
del os.environ["TORCHETTE_FAULT"]
found["available"] = registry.is_available("VulkanBackend")
found["old"] = error(lambda: off(first)) or ""
found["after"] = off(program.load_method("forward"))
print(json.dumps(found))
"""


def test_lost_device_is_an_error_and_loading_opens_a_new_one(layer, tmp_path):
    module, inputs = networks()["vision"]
    lower(module, inputs, tmp_path, fallback=False)
    report = run(_LOSES, layer, tmp_path / "cache", tmp_path, "lost")
    assert "was lost" in report["during"] and "load its methods again" in report["old"]
    assert report["available"] and max(report["before"], report["after"]) < 1e-4


def test_failed_allocation_is_an_error(layer, tmp_path):
    module, inputs = networks()["vision"]
    lower(module, inputs, tmp_path, fallback=False)
    report = run(_LOSES, layer, tmp_path / "cache", tmp_path, "full")
    assert "VkResult -2" in report["during"] and report["old"] == ""
    assert report["available"] and max(report["before"], report["after"]) < 1e-4
