# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch's module paths are served from one table, which is compared with the installed ExecuTorch."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from torchette import compat


def _names(path: str) -> dict[str, str]:
    """Name -> Torchette module; empty if the path maps to one module."""
    entry = compat.TABLE[path]
    return {} if isinstance(entry, str) else entry


@pytest.mark.parametrize("path", compat.TABLE)
def test_every_name_exists(path: str) -> None:
    module = importlib.import_module(f"torchette.{path}")
    for name, ours in _names(path).items():
        home, _, called = ours.partition(":")
        assert getattr(module, name) is getattr(importlib.import_module(home), called or name)
    with pytest.raises(AttributeError, match="no attribute"):
        module.no_such_name  # noqa: B018


# Paths of earlier ExecuTorch releases, which existing code still imports.
EARLIER = (
    "backends.backend_api",
    "backends.backend_details",
    "backends.partitioner",
    "extension.pybindings._portable_lib",
    "profiler.parse_profiler_results",
    "profiler.profiler_results_cli",
)


# Both packages register `torch.ops.llama`, so only one can be loaded. tests/llm/exporting/test_custom_ops.py compares
# them.
OPERATORS = (
    "extension.llm.custom_ops.custom_ops",
    "examples.models.llama.source_transformation.custom_kv_cache",
)


@pytest.mark.parametrize(
    "path", [path for path in compat.TABLE if path not in EARLIER + OPERATORS and "xnnpack" not in path]
)
def test_paths_exist_in_peer(path: str) -> None:
    pytest.importorskip("executorch")
    if path.startswith("devtools.visualization"):
        pytest.importorskip("model_explorer")
    theirs = importlib.import_module(f"executorch.{path}")
    # Private names of the peer's package.
    inner = {"DelegationInfo"}
    if path == "exir.passes":
        inner |= {
            "CSEPass", "ConstraintBasedSymShapeEvalPass", "RemoveGraphAssertsPass", "RemoveMixedTypeOperators",
        }  # fmt: skip
    assert [name for name in _names(path) if not hasattr(theirs, name) and name not in inner] == []


MODULES = (
    "", "partition.xnnpack_partitioner", "partition.config", "partition.config.gemm_configs",
    "partition.config.generic_node_configs", "partition.config.node_configs", "partition.config.quant_affine_configs",
    "partition.config.xnnpack_config", "quantizer.xnnpack_quantizer", "quantizer.xnnpack_quantizer_utils",
    "recipes", "recipes.xnnpack_recipe_types", "utils.configs", "xnnpack_preprocess",
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_xnnpack_backend_has_peer_names(module: str) -> None:
    pytest.importorskip("executorch.backends.xnnpack")
    path = ".".join(filter(None, ("backends.xnnpack", module)))
    theirs, ours = (importlib.import_module(f"{root}.{path}") for root in ("executorch", "torchette"))
    public = getattr(theirs, "__all__", None) or [
        name
        for name, value in vars(theirs).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == theirs.__name__
    ]
    assert [name for name in public if not hasattr(ours, name)] == []
    backend = importlib.import_module("torchette.backends.xnnpack")
    torchaos = (
        {name for name, home in _names(path).items() if home.startswith("torchao")} if module else set()
    )
    assert [name for name in public if name not in torchaos and not hasattr(backend, name)] == []
    targets = {name: getattr(getattr(theirs, name, None), "target_name", None) for name in public}
    for name, target in targets.items():
        if isinstance(target, str):
            assert getattr(ours, name).target_name == target


def test_submodule_does_not_hide_function_of_its_package() -> None:
    script = "import torchette.export.export; from torchette.export import export; export.__call__"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_sdk_is_alias_of_devtools() -> None:
    import torchette.sdk
    from torchette.sdk.bundled_program.core import BundledProgram
    from torchette.sdk.inspector import Inspector, TimeScale

    import torchette.devtools

    assert torchette.sdk is torchette.devtools and TimeScale.MS.value == "ms"
    assert (BundledProgram, Inspector) == (torchette.devtools.BundledProgram, torchette.devtools.Inspector)


def test_devtools_has_peer_names() -> None:
    for path in ("devtools", "devtools.etrecord", "devtools.inspector.numerical_comparator"):
        theirs = pytest.importorskip(f"executorch.{path}")
        ours = importlib.import_module(f"torchette.{path}")
        assert [name for name in theirs.__all__ if not hasattr(ours, name)] == []
    theirs, ours = (
        importlib.import_module(f"{root}.devtools.inspector") for root in ("executorch", "torchette")
    )
    missing = [name for name in theirs.__all__ if not hasattr(ours, name)]
    assert all("vgf" in name for name in missing)


@pytest.mark.parametrize("path", compat.ABSENT)
def test_missing_path_names_alternative(path: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"does not exist\. Try: .*from-executorch\.md") as caught:
        importlib.import_module(f"torchette.{path}.no_such_module")
    assert compat.ABSENT[path] in str(caught.value)


def _paths_of_executorch() -> list[str]:
    """Returns all modules of the installed package: Python and native.

    Its tests, examples and third parties' code are left out.
    """
    package = importlib.util.find_spec("executorch")
    if package is None:
        pytest.skip("ExecuTorch is not installed")
    (root,) = map(Path, package.submodule_search_locations or ())
    paths = set()
    for file in (*root.rglob("*.py"), *root.rglob("*.so")):
        parts = [*file.relative_to(root).parts[:-1], file.name.partition(".")[0]]
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        inner = {"test", "tests", "third-party", "examples", "lib", "data"} & set(parts)
        if parts and (not inner or parts[:3] == ["exir", "backend", "test"]):
            paths.add(".".join(parts))
    return sorted(paths)


def _is_here(path: str) -> bool | None:
    """Whether a path is served; None if its import would raise an error without an alternative."""
    try:
        return None if importlib.util.find_spec(f"torchette.{path}") is None else True
    except ModuleNotFoundError as error:
        return False if "Try: " in str(error) else None


def test_every_executorch_module_is_served_or_names_alternative() -> None:
    served = {path: _is_here(path) for path in _paths_of_executorch()}
    assert len(served) > 1500 and sum(map(bool, served.values())) > 140
    assert [path for path, here in served.items() if here is None] == []


@pytest.mark.parametrize(
    "path",
    [
        "exir",
        "exir.backend.utils",
        "exir.tensor",
        "exir.memory",
        "exir.pass_base",
        "exir.pass_manager",
        "exir.serde.serialize",
        "devtools",
        "exir.schema",
        "backends.xnnpack",
    ],
)
def test_missing_name_names_alternative(path: str) -> None:
    with pytest.raises(ImportError, match=rf"torchette\.{path}\.no_such_name does not exist\. Try: "):
        exec(f"from torchette.{path} import no_such_name")
    if path not in ("devtools", "backends.xnnpack"):
        with pytest.raises(AttributeError, match=r"no attribute 'no_such_name'\. Try: "):
            importlib.import_module(f"torchette.{path}").no_such_name  # noqa: B018


def test_star_import() -> None:
    names: dict[str, object] = {}
    exec("from torchette.exir.backend.utils import *", names)
    assert {"WhyNoPartition", "get_delegates"} <= set(names)


def test_environment_is_collected() -> None:
    path = "torchette.util.collect_env"
    done = subprocess.run([sys.executable, "-m", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "backends: " in done.stdout and "torch: " in done.stdout, done.stderr
    assert "cpu" in importlib.import_module(path).get_env_info()


def test_unknown_paths_raise() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torchette.exir.backend.no_such_module")


@pytest.mark.parametrize(("old", "new"), sorted(compat.MOVED.items()))
def test_moved_module_names_new_path(old: str, new: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"torchette\.{old} has moved: import torchette\.{new}$"):
        importlib.import_module(f"torchette.{old}")
    importlib.import_module(f"torchette.{new}")


ALIASED = """
import importlib, sys
from torchette.compat import alias_executorch
alias_executorch()
alias_executorch()
import torchette, executorch
assert executorch is torchette
# In both orders: a module with the name of a function in its package must not replace the function.
import executorch.export.export
from executorch.export import export
export.__call__
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner
from executorch.sdk import BundledProgram
from executorch.version import __version__
assert to_edge_transform_and_lower is torchette.exir.to_edge_transform_and_lower
assert Partitioner is importlib.import_module("torchette.exir.delegation.delegate").Partitioner
assert __version__ == torchette.__version__ and torchette.exir.__spec__.name == "torchette.exir"
assert importlib.util.find_spec("executorch") and importlib.util.find_spec("executorch.exir.passes")
for name in "executorch.no_such", "executorch.exir.no_such.thing", "executorch.devtools.pte_tool":
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(error)
assert not any("/executorch/" in (getattr(m, "__file__", None) or "") for m in list(sys.modules.values()))
"""


def test_alias_executorch() -> None:
    done = subprocess.run([sys.executable, "-c", ALIASED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one, two, three = done.stdout.splitlines()
    assert "`executorch` is an alias of torchette, which has no module no_such" in one
    assert "executorch.exir.no_such" in two and "Try: torchette pte-diff" in three


def test_alias_after_import_of_executorch_raises() -> None:
    script = """
import sys, types
sys.modules["executorch.exir"] = types.ModuleType("executorch.exir")
from torchette.compat import alias_executorch
from torchette.errors import TorchetteError
try:
    alias_executorch()
except TorchetteError as error:
    assert "executorch.exir is already imported" in str(error), error
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 7
