# SPDX-License-Identifier: BSD-3-Clause
# In: targets and a model. Out: seconds of a build from the sources of the runtime to a program for the model: with empty caches,
# with only the C library that zig compiles once, and without changes.
"""Build times: seconds of `torchette build` with empty and with filled caches."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGETS = (
    "host",
    "x86-64-linux-musl",
    "aarch64-linux",
    "armv7-linux",
    "riscv64-linux",
    "cortex-m4",
    "wasm32-wasi",
    "wasm32-browser",
)


def main(arguments: list[str] | None = None) -> int:
    from tests.models import artifacts

    parser = argparse.ArgumentParser(prog="./dev bench sources", description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS, help=f"default: {' '.join(TARGETS)}")
    parser.add_argument("--model", default="digits")
    parser.add_argument("--compiler", help="as for torchette build (default: ziglang; on the host c++)")
    options = parser.parse_args(arguments)
    print("wall seconds / CPU seconds of torchette build")
    print(f"{'':20}{'empty caches':>16}{'C library there':>18}{'nothing changed':>18}{'bytes':>12}")
    for name in options.targets:
        with tempfile.TemporaryDirectory() as folder:
            model, output = Path(folder, f"{options.model}.pte"), Path(folder, "output")
            model.write_bytes(artifacts.our_file(options.model))
            command = [sys.executable, "-m", "torchette", "build", "--target", name, str(model)]
            command += ["-o", str(output), *(["--compiler", options.compiler] if options.compiler else [])]
            zig = str(Path(folder, "zig"))
            environment = {
                **os.environ,
                "TORCHETTE_CACHE": str(Path(folder, "objects")),
                "ZIG_GLOBAL_CACHE_DIR": zig,
                "ZIG_LOCAL_CACHE_DIR": zig,
            }
            times = [_seconds(command, environment)]
            # another log level rebuilds everything except the C library
            times.append(_seconds([*command, "--log-level", "3"], environment))
            times.append(_seconds(command, environment))
            print(
                f"{name:20}"
                + "".join(
                    f"{f'{wall:.1f} / {cpu:.1f}':>{width}}" for (wall, cpu), width in zip(times, (16, 18, 18))
                )
                + f"{_bytes(output):12,}",
                flush=True,
            )
    return 0


def _seconds(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Returns wall seconds and processor seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _bytes(output: Path) -> int:
    """Returns the bytes of the program, the image or the module."""
    (path,) = [*output.glob("images/*/*.elf"), *output.glob("bin/executor_runner*"), *output.glob("*.wasm")][
        :1
    ]
    return path.stat().st_size


if __name__ == "__main__":
    raise SystemExit(main())
