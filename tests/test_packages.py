# SPDX-License-Identifier: BSD-3-Clause
# Optional packages: the table equals the extras of pyproject.toml; a missing package and a broken one are told apart.

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchette.exir
from torchette import packages
from torchette.errors import MissingPackageError, UntestedTorchWarning
from torchette.packages import PACKAGES, missing_package, require, torch_problem, torch_remedy

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).parents[1]


def test_the_table_lists_the_requirements_of_the_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    users = {name: extras[name] for name in ("export", "quantize", "llm", "llm-export", "build")}
    stated = {
        (name, requirement)
        for name, requirements in users.items()
        for requirement in requirements
        if not requirement.startswith("torchette[")
    }
    assert {(package.extra, package.requirement) for package in PACKAGES.values() if package.extra} == stated
    included = {
        name for requirement in extras["all"] for name in re.findall(r"[\w-]+", requirement.split("[")[1])
    }
    for name in list(included):
        included |= {
            extra
            for text in users[name]
            if "[" in text
            for extra in re.findall(r"[\w-]+", text.split("[")[1])
        }
    assert included == set(users)


def test_a_module_that_is_installed_is_returned():
    assert require("json.decoder", "a test").JSONDecoder


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.delitem(sys.modules, "torchao.quantization", raising=False)
    with pytest.raises(
        MissingPackageError, match="quantizing needs torchao, which is not installed"
    ) as caught:
        require("torchao.quantization", "quantizing", ["another remedy"])
    assert caught.value.hints == ("pip install 'torchao>=0.18'", "another remedy")


def test_torch_is_installed_from_the_index_without_cuda():
    assert PACKAGES["torch"].install.startswith(
        "pip install 'torch>=2.13' --index-url https://download.pytorch.org/"
    )


@pytest.mark.parametrize(
    ("body", "cause", "remedy"),
    [
        (
            "raise RuntimeError('operator x::nms does not exist')",
            "RuntimeError: operator x::nms",
            "shows the whole",
        ),
        ("import no_such_part", "No module named 'no_such_part'", "pip install no_such_part"),
        ("from json import no_such_name", "ImportError: cannot import name", "shows the whole error"),
    ],
)
def test_a_package_whose_import_fails_is_an_error_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, cause: str, remedy: str
):
    (tmp_path / "a_broken_package.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackageError, match="cannot be imported") as caught:
        require("a_broken_package", "a test")
    assert cause in caught.value.message and remedy in caught.value.hints[0]


def test_a_package_that_another_one_imports_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As with torchvision in transformers, which raises its own error instead of the original one."""
    (tmp_path / "a_broken_part.py").write_text("raise RuntimeError('operator x::nms does not exist')")
    (tmp_path / "a_lazy_package.py").write_text(
        "try:\n    import a_broken_part\nexcept Exception as error:\n"
        "    raise ModuleNotFoundError('Could not import module') from error\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingPackageError, match="a_broken_part raised RuntimeError: operator x::nms"
    ) as caught:
        require("a_lazy_package", "a test")
    assert caught.value.message.startswith("a test needs a_lazy_package, which is installed but")
    assert caught.value.hints[0].startswith("pip uninstall a_broken_part, or install")


def test_messages_of_an_imported_package_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "a_loud_package.py").write_text(
        "import logging, warnings\nwarnings.warn('old')\nlogging.getLogger('loud').warning('no library')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    require("a_loud_package", "a test")
    assert capfd.readouterr() == ("", "")
    logging.getLogger("loud").warning("our own")  # the filter has ended
    assert logging.root.manager.disable == 0


def test_missing_dependency_has_the_hint_of_the_table():
    error = ModuleNotFoundError("No module named 'torch'", name="torch")
    assert missing_package("torchao", "quantizing", error).hints == (PACKAGES["torch"].install,)


@pytest.fixture
def later_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next release after those that are tested."""
    major, minor = packages.TESTED_TORCH[1].split(".")
    monkeypatch.setattr(packages, "_torch_version", lambda: f"{major}.{int(minor) + 1}.0+cpu")
    packages.warn_of_untested_torch.cache_clear()
    yield
    packages.warn_of_untested_torch.cache_clear()


def test_releases_of_torch_between_the_first_and_the_last_are_tested():
    first, last = packages.TESTED_TORCH
    assert PACKAGES["torch"].requirement == f"torch>={first}" and f">={first},<" in torch_remedy()
    for version in (None, f"{first}.0+cpu", f"{last}.1", "2.14.1"):
        assert torch_problem(version) is None
    assert torch_problem("2.9.1") == f"torch is 2.9.1; Torchette is tested with torch {first} to {last}"
    assert "torch is 3.0.0a0" in str(torch_problem("3.0.0a0"))


@pytest.mark.usefixtures("later_torch")
def test_the_compiler_warns_once_of_an_untested_torch():
    torch = pytest.importorskip("torch")
    module, inputs = torch.nn.ReLU(), (torch.ones(2),)
    with pytest.warns(UntestedTorchWarning, match="is tested with torch") as caught:
        torchette.exir.to_edge(torch.export.export(module, inputs))
    assert len(caught) == 1
    torchette.compile(module, inputs)  # does not warn again: a warning is an error here


@pytest.mark.usefixtures("later_torch")
@pytest.mark.parametrize("module", [torchette, torchette.exir])
def test_an_operator_that_an_untested_torch_lacks_is_an_error_with_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any
):
    (tmp_path / "a_compiler.py").write_text("import math\nmath.removed_function")
    monkeypatch.syspath_prepend(tmp_path)
    home = ("a_compiler", "compile") if module is torchette else "a_compiler"
    monkeypatch.setitem(module._LAZY, "a_name", home)
    with pytest.raises(
        MissingPackageError, match=r"a_name cannot .* AttributeError: .*removed_function"
    ) as caught:
        module.__getattr__("a_name")
    assert caught.value.hints == (torch_remedy(),) and "is tested with" in caught.value.message
    monkeypatch.setattr(packages, "_torch_version", lambda: packages.TESTED_TORCH[0])
    with pytest.raises(AttributeError):  # with a release that is tested, the fault is ours
        module.__getattr__("a_name")
