# SPDX-License-Identifier: BSD-3-Clause
# In: this machine and this installation. Out: installed and missing components, and the commands that install them.
"""Show installed and missing components, and how to install them

Prints versions, the processor's features, the instruction set and the threads that the kernels use, the processor's
measured limits (about one second, once), the backends, and every optional package with the command that installs it.
The exit code is 1 if a component that is required to run models is missing. A missing optional package is not a
failure.

examples:
  torchette doctor
  torchette doctor --json     for a bug report
  torchette doctor --measure  measure the processor's limits again
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torchette
from torchette.cli import CHECK_FAILED, DONE
from torchette.cli._console import print_json, print_table, print_values
from torchette.devtools.limits import cpu_facts, cpu_name, limits
from torchette.errors import NativeModuleError
from torchette.packages import PACKAGES, torch_problem, torch_remedy
from torchette.runtime import native

ALIASES = ("env",)  # name of this verb in other tools
# CPU flags (in the Linux kernel's spelling) that each x86-64 level adds to the previous one.
X86_LEVELS = {
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
X86_EXTENSIONS = {"avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--measure", action="store_true", help="measure the processor's limits again")


def run(options: argparse.Namespace) -> int:
    environment = gather(measure=options.measure)
    problems = advice(environment)
    if options.json:
        print_json({**environment, "problems": problems})
    else:
        print_values(_lines(environment))
        print()
        packages = environment["packages"]
        print_table(
            ["optional package", "version", "for", "install"],
            [
                [package.name, packages[package.name] or "not installed", package.enables, package.install]
                for package in PACKAGES.values()
            ],
        )
        for words in problems.values():
            print(f"\n  - {words}", end="")
        print("\nAll components that are required to run models are installed." if not problems else "")
    return CHECK_FAILED if "native module" in problems else DONE


def gather(*, measure: bool = False) -> dict[str, Any]:
    """Returns the properties of the environment; None if missing. With `measure`, measures the limits again."""
    module = _native_module(measure)
    return {
        "torchette": {"version": torchette.__version__, "folder": str(Path(torchette.__file__).parent)},
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "system": platform.platform(),
        "cpu": {"name": cpu_name(), "level": cpu_level(), "extensions": cpu_extensions()},
        "native module": module,
        "numpy": _version("numpy"),
        "packages": {package.name: _version(package.name) for package in PACKAGES.values()},
        "executorch": _version("executorch"),
        "C++ compiler": _first_line("c++", "--version"),
        "cmake": _first_line("cmake", "--version"),
    }


def advice(environment: dict[str, Any]) -> dict[str, str]:
    """Returns the problems by component, each with the command that solves it."""
    checkout = (Path(torchette.__file__).parents[1] / "dev").exists()
    remedies: dict[str, str] = {}
    if environment["native module"] is None:
        fix = (
            "./dev setup"
            if checkout
            else "pip install --force-reinstall, with the wheel or folder that you installed"
        )
        if environment["C++ compiler"] is None:
            fix = f"apt-get install g++, then {fix}"
        remedies["native module"] = f"The native module, which runs models, is missing. Try: {fix}"
    problem = torch_problem(environment["packages"]["torch"])
    if problem is not None:
        remedies["torch"] = f"{problem}. Try: {torch_remedy()}"
    return remedies


def cpu_level() -> str:
    """Returns the highest x86-64 level that the processor supports, or the architecture on other processors."""
    machine = platform.machine()
    if machine != "x86_64":
        return machine
    flags = set(cpu_facts().get("flags", "").split())
    level = "x86-64"
    for name, needed in X86_LEVELS.items():
        if not needed <= flags:
            break
        level = name
    return level


def cpu_extensions() -> list[str]:
    """Returns the extensions beyond the level that kernels use, in the Linux kernel's spelling."""
    return sorted(X86_EXTENSIONS & set(cpu_facts().get("flags", "").split()))


def _lines(environment: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns names and texts of the environment, without the optional packages."""
    python, cpu, module = environment["python"], environment["cpu"], environment["native module"]
    lines = {
        "torchette": "{version} in {folder}".format(**environment["torchette"]),
        "python": f"{python['version']} ({python['executable']})",
        "system": environment["system"],
        "cpu": cpu["name"],
        "cpu level": f"{cpu['level']} (and {', '.join(cpu['extensions'])})"
        if cpu["extensions"]
        else cpu["level"],
        "native module": module and module["path"],
    }
    if module is not None:
        lines["kernels use"] = module["kernels"]
        lines["threads"] = f"{module['threads']} by default: the physical cores"
        for limit in module["limits"]:
            count = limit["threads"]
            lines[f"limit of {count} thread{'s' * (count > 1)}"] = limit["text"]
        lines["backends"] = ", ".join(module["backends"])
        if module["xnnpack"] is not None:
            lines["XNNPACK's payloads"] = f"run on {module['xnnpack']}"
    lines |= {name: environment[name] for name in ("numpy", "executorch", "C++ compiler", "cmake")}
    return [(name, "not found" if text is None else text) for name, text in lines.items()]


def _native_module(measure: bool) -> dict[str, Any] | None:
    """Returns the native module's path, kernels, threads, limits, backends, and the runtime of XNNPACK's payloads; None if it
    cannot be imported."""
    try:
        module = native.module()
    except NativeModuleError:
        return None
    runtime: Any = importlib.import_module("torchette.runtime")
    threads = runtime.Runtime.get().num_threads
    measured = [limits(count, again=measure) for count in sorted({1, threads})]
    return {
        "path": module.__file__,
        "kernels": module.isa(),
        "threads": threads,
        "limits": [{**dataclasses.asdict(limit), "text": str(limit)} for limit in measured],
        "backends": sorted(runtime.BackendRegistry().registered_backend_names),
        "xnnpack": _xnnpack_executor(),
    }


def _xnnpack_executor() -> str | None:
    """Returns the executor of XNNPACK payloads, or None if the build does not have the backend."""
    registry = importlib.import_module("torchette.runtime").BackendRegistry()
    if "XnnpackBackend" not in registry.registered_backend_names:
        return None
    if registry.get_option("XnnpackBackend", "library"):
        return "XNNPACK's library if it computes what eager does, otherwise on Torchette's kernels"
    return "Torchette's kernels"


# ---- the names of ExecuTorch's util.collect_env ----

get_env_info = gather


def get_pretty_env_info() -> str:
    """Returns the environment as text for a bug report."""
    environment = gather()
    lines = [
        *_lines(environment),
        *((name, version or "not installed") for name, version in environment["packages"].items()),
    ]
    return "\n".join(f"{name}: {text}" for name, text in lines)


def main() -> int:
    """Prints the environment."""
    print(get_pretty_env_info())
    return DONE


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0] or None
