# SPDX-License-Identifier: BSD-3-Clause
# In: this machine and this installation. Out: what is installed, what is missing, and the command that fixes it.
"""What is installed, what is missing, and how to fix it

Prints versions, the CPU's features, the instruction set and the threads that the kernels run with, what the CPU can do (measured
once, in about a second), and the backends. Exit code 1 if something that running a model needs is missing. What only compiling
or developing needs is listed, but is no failure.

examples:
  torchette doctor
  torchette doctor --json     for a bug report
  torchette doctor --measure  what the processor can do, measured anew
"""

from __future__ import annotations

import argparse
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
from torchette.cli._console import print_json, print_values
from torchette.devtools.limits import cpu_facts, cpu_name, limits

ALIASES = ("env",)  # its name elsewhere
TORCH = "2.13"  # the release that the tests run with, as in pyproject.toml
# What each x86-64 level adds to the one before, by the kernel's names.
X86_LEVELS = {
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--measure", action="store_true", help="measure again what the processor can do")


def run(options: argparse.Namespace) -> int:
    facts = gather(measure=options.measure)
    missing = advice(facts)
    if options.json:
        print_json({**facts, "missing": missing})
    else:
        print_values([(name, "not found" if value is None else value) for name, value in facts.items()])
        for words in missing.values():
            print(f"\n  - {words}", end="")
        print("\nNothing is missing." if not missing else "")
    return CHECK_FAILED if "native module" in missing else DONE


def gather(*, measure: bool = False) -> dict[str, Any]:
    """Every fact by name; None for what is missing. What the processor can do is measured if it is not known, or if asked for."""
    native, isa = _native()
    threads = _default_threads() if native else 0
    can = {
        f"{count} thread{'s' * (count > 1)} can do": str(limits(count, again=measure))
        for count in sorted({1, threads} - {0})
        if native
    }
    return {
        "torchette": f"{torchette.__version__} in {Path(torchette.__file__).parent}",
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cpu level": cpu_level(),
        "native module": native,
        "kernels use": isa,
        "threads": f"{threads}, the physical cores, where a program does not say" if native else None,
        **can,
        "backends": ", ".join(_backends()) if native else None,
        "numpy": _version("numpy"),
        "torch": _version("torch"),
        "executorch": _version("executorch"),
        "rich": _version("rich"),
        "C++ compiler": _first_line("c++", "--version"),
        "cmake": _first_line("cmake", "--version"),
    }


def advice(facts: dict[str, Any]) -> dict[str, str]:
    """What is missing -> what needs it, and how to fix it."""
    checkout = (Path(torchette.__file__).parents[1] / "dev").exists()
    found: dict[str, str] = {}
    if facts["native module"] is None:
        fix = "./dev setup" if checkout else "pip install --force-reinstall torchette"
        if facts["C++ compiler"] is None:
            fix = f"apt-get install g++, then {fix}"
        found["native module"] = f"The native module is not built; without it no model runs. Try: {fix}"
    if facts["torch"] is None:
        found["torch"] = (
            "torch is not installed; compiling needs it, running does not. Try: pip install 'torchette[export]'"
        )
    elif not facts["torch"].startswith(TORCH + "."):
        found["torch"] = (
            f"torch is {facts['torch']}, Torchette is tested with {TORCH}. Try: pip install 'torch=={TORCH}.*'"
        )
    return found


def cpu_level() -> str:
    """The highest x86-64 level that the CPU has, or the architecture's name elsewhere."""
    machine = platform.machine()
    if machine != "x86_64":
        return machine
    flags = set(cpu_facts().get("flags", "").split())
    level = "x86-64"
    for name, needed in X86_LEVELS.items():
        if not needed <= flags:
            break
        level = name
    extra = sorted(flags & {"avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile"})
    return f"{level} (and {', '.join(extra)})" if extra else level


def _default_threads() -> int:
    runtime: Any = importlib.import_module("torchette.runtime")
    result: int = runtime.Runtime.get().num_threads
    return result


def _native() -> tuple[str | None, str | None]:
    """The path of the native module, and the instruction set of its kernels."""
    try:
        native: Any = importlib.import_module("torchette.runtime._native")
    except ImportError:
        return None, None
    return native.__file__, native.isa()


def _backends() -> list[str]:
    """The backends that delegates can be run on."""
    runtime: Any = importlib.import_module("torchette.runtime")
    registry = runtime.BackendRegistry()
    names = set(registry.registered_backend_names)
    if "XnnpackBackend" in names and not registry.get_option("XnnpackBackend", "library"):
        names ^= {"XnnpackBackend", "XnnpackBackend (float32 only: on our kernels, without its library)"}
    return sorted(names)


# ---- the names of ExecuTorch's util.collect_env ----

get_env_info = gather


def get_pretty_env_info() -> str:
    """The facts as text for a bug report."""
    return "\n".join(f"{name}: {'not found' if value is None else value}" for name, value in gather().items())


def main() -> int:
    """Prints the facts."""
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
