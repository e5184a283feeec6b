# SPDX-License-Identifier: BSD-3-Clause
# Optional packages: the table equals the extras of pyproject.toml; a missing package and a broken one are told apart.

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest

from torchette.errors import MissingPackageError
from torchette.packages import PACKAGES, missing_package, require

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
    assert {(it.extra, it.requirement) for it in PACKAGES.values() if it.extra} == stated
    included = {
        name for requirement in extras["all"] for name in re.findall(r"[\w-]+", requirement.split("[")[1])
    }
    for name in list(included):
        included |= {
            it for text in users[name] if "[" in text for it in re.findall(r"[\w-]+", text.split("[")[1])
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
    ("body", "said", "remedy"),
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str, remedy: str
):
    (tmp_path / "a_broken_package.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackageError, match="cannot be imported") as caught:
        require("a_broken_package", "a test")
    assert said in caught.value.message and remedy in caught.value.hints[0]


def test_a_package_that_another_one_imports_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As torchvision in transformers, which hides the error behind one of its own."""
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


def test_a_missing_dependency_from_the_table_is_installed_as_the_table_says():
    error = ModuleNotFoundError("No module named 'torch'", name="torch")
    assert missing_package("torchao", "quantizing", error).hints == (PACKAGES["torch"].install,)
