# SPDX-License-Identifier: BSD-3-Clause
# The optional packages: the purpose of each, and the command that installs it. pyproject.toml lists the same
# requirements as extras, which tests/test_packages.py compares.
"""Optional packages: importing one, and the error if it is missing."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torchette.errors import MissingPackageError, UntestedTorchWarning

TESTED_TORCH = ("2.13", "2.15")  # the oldest and newest tested releases of torch


class Package(NamedTuple):
    """An optional package."""

    module: str
    requirement: str  # as pip accepts it
    extra: str | None  # of pyproject.toml; None if only an option of one function needs the package
    enables: str

    @property
    def name(self) -> str:
        """The distribution's name, without its version."""
        return self.requirement.partition(">")[0].partition("=")[0]

    @property
    def install(self) -> str:
        """The command that installs the package.

        For torch, it selects the CPU build, because PyPI's build includes CUDA.
        """
        quoted = f"'{self.requirement}'" if ">" in self.requirement else self.requirement
        index = " --index-url https://download.pytorch.org/whl/cpu" if self.module == "torch" else ""
        return f"pip install {quoted}{index}"


PACKAGES = {
    package.module: package
    for package in (
        Package("torch", "torch>=2.13", "export", "compiling models"),
        Package("rich", "rich>=13", "export", "tables and progress bars in a terminal"),
        Package("torchao", "torchao>=0.18", "quantize", "quantizing models"),
        Package("transformers", "transformers>=5", "llm-export", "compiling language models"),
        Package("safetensors", "safetensors", "llm-export", "reading the weights of language models"),
        Package("PIL", "pillow", "llm", "images for language models"),
        Package("ziglang", "ziglang==0.17.0", "build", "`torchette build` for other machines"),
        Package("yaml", "pyyaml", "build", "lists of kernels in YAML"),
        Package("pandas", "pandas", None, "DataFrames of the Inspector"),
        Package("matplotlib", "matplotlib", None, "plots of the Inspector"),
        Package("model_explorer", "ai-edge-model-explorer", None, "graphs in Model Explorer"),
    )
}


def require(module: str, purpose: str, hints: Iterable[str] = ()) -> Any:
    """Imports and returns a module of an optional package.

    Args:
        module: the module's full name, such as ``torchao.quantization``.
        purpose: the feature that needs the package, as the subject of the error's sentence.
        hints: remedies in addition to installing the package.

    Raises:
        MissingPackageError: if the package is not installed, or if its import raised an error.
    """
    try:
        with quietly():
            return importlib.import_module(module)
    except Exception as error:  # a package's own code may raise anything
        missing = missing_package(module, purpose, error, hints)
        raise missing from (None if isinstance(error, ModuleNotFoundError) else error)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hides warnings and log messages of packages that are imported or called in the context. Errors are not hidden."""
    import logging
    import warnings

    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def missing_package(
    module: str, purpose: str, error: BaseException, hints: Iterable[str] = ()
) -> MissingPackageError:
    """Returns the error for a module that could not be imported because of ``error``; see `require` for the other
    arguments.
    """
    top = module.partition(".")[0]
    package = PACKAGES.get(top) or Package(top, top, None, "")
    names = imported_packages(error)
    while error.__cause__ is not None:
        error = error.__cause__
    absent = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and absent == top:
        return MissingPackageError(
            f"{purpose} needs {package.name}, which is not installed", hints=[package.install, *hints]
        )
    text = str(error).strip().partition("\n")[0]
    culprit = names[-1] if names and names[-1] != top else ""
    if isinstance(error, ModuleNotFoundError) and absent:
        remedy = PACKAGES[absent].install if absent in PACKAGES else f"pip install {absent}"
    elif culprit:
        remedy = f"pip uninstall {culprit}, or install a build of it that fits the other packages"
    else:
        remedy = f'python -c "import {module}" shows the whole error; other versions of its packages may help'
    return MissingPackageError(
        f"{purpose} needs {package.name}, which is installed but cannot be imported: "
        f"{f'{culprit} raised ' if culprit else ''}{type(error).__name__}: {text}",
        hints=[remedy, *hints],
    )


def imported_packages(error: BaseException) -> list[str]:
    """Returns the packages that were being imported when the error was raised, the innermost last.

    Excludes Torchette.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    names: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "<module>":
            names.append(str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0])
        trace = trace.tb_next
    return [name for name in dict.fromkeys(names) if name not in ("__main__", "torchette")]


def import_compiler(module: str, purpose: str) -> Any:
    """Imports and returns a module of Torchette that needs torch.

    Args:
        module: the module's full name.
        purpose: the requested name, as the subject of the error's sentence.

    Raises:
        MissingPackageError: if a package is missing, or if the import failed with an untested release of torch.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, AttributeError) as error:  # an operator that torch lacks is an AttributeError
        absent = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        package = absent.partition(".")[0]
        if absent == "torch" or package not in ("", "torch", "torchette"):
            raise missing_package(package, purpose, error) from error
        problem = torch_problem(_torch_version())
        if problem is None:
            raise
        raise MissingPackageError(
            f"{purpose} cannot be imported with this release of torch: {type(error).__name__}: {error}\n{problem}",
            hints=[torch_remedy()],
        ) from error


@functools.cache
def warn_of_untested_torch() -> None:
    """Warns once in a process if the installed release of torch is not among the tested releases."""
    problem = torch_problem(_torch_version())
    if problem is not None:
        lines = (problem, "`model.verify()` compares a compiled model with torch", f"Try: {torch_remedy()}")
        warnings.warn("\n  ".join(lines), UntestedTorchWarning, stacklevel=3)


def torch_problem(version: str | None) -> str | None:
    """Returns a message for an untested release of torch, or None if it is tested or missing."""
    first, last = TESTED_TORCH
    if version is None or _minor(first) <= _minor(version) <= _minor(last):
        return None
    return f"torch is {version}; Torchette is tested with torch {first} to {last}"


def torch_remedy() -> str:
    """Returns the command that installs a tested release of torch."""
    major, minor = _minor(TESTED_TORCH[1])
    return PACKAGES["torch"].install.replace(
        f">={TESTED_TORCH[0]}", f">={TESTED_TORCH[0]},<{major}.{minor + 1}"
    )


def _torch_version() -> str | None:
    from importlib import metadata  # `import torchette` must not need its milliseconds

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _minor(version: str) -> tuple[int, ...]:
    """Returns the major and minor version."""
    return tuple(int(number) for number in version.split(".")[:2])
