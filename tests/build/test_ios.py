# SPDX-License-Identifier: BSD-3-Clause
# iOS without a Mac: the presets configure, and ziglang compiles the library for iOS with its Darwin headers. The app of
# examples/ios configures with a substitute for the Swift compiler. Linking and running would require Apple's SDK.

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import sys
from pathlib import Path

import pytest

from tests.building import ROOT, run
from tests.sweep import sweep

EXAMPLE = ROOT / "examples/ios"
PLATFORMS = {
    "ios": ("iPhoneOS", "aarch64-ios", 2),
    "ios-simulator": ("iPhoneSimulator", "aarch64-ios-simulator", 7),
}
BINDING = ROOT / "torchette/extension/swift/Sources/Torchette/Torchette.swift"
# Answers CMake's queries to a Swift compiler, which Debian does not have.
SWIFT = """#!/bin/sh
case "$*" in
  *-print-target-info*) echo '%s' ;;
  *) echo "Swift version 5.9" ;;
esac
"""
INFO = {
    "target": dict.fromkeys(("triple", "unversionedTriple", "moduleTriple"), "arm64-apple-ios14.0"),
    "paths": {"runtimeLibraryPaths": [], "runtimeLibraryImportPaths": [], "runtimeResourcePath": "/"},
}


def options(preset: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns CMake options that select ziglang instead of Xcode, and a substitute for Apple's SDK folder."""
    zig = Path(pytest.importorskip("ziglang").__file__).parent
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no cmake and ninja")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{zig}")
    sdk, triple, _ = PLATFORMS[preset]
    headers = folder / f"{sdk}.sdk" / "usr" / "include"
    headers.parent.mkdir(parents=True)
    headers.symlink_to(zig / "lib/libc/include/any-darwin-any")
    chosen = {
        "CMAKE_OSX_SYSROOT": headers.parents[1],
        "CMAKE_CXX_COMPILER": "zig",
        "CMAKE_CXX_COMPILER_ARG1": "c++",
        "CMAKE_CXX_COMPILER_TARGET": triple,
        "CMAKE_CXX_FLAGS": f"-isystem {headers}",
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
        "Python_EXECUTABLE": sys.executable,
    }
    return ["-G", "Ninja", *(f"-D{name}={value}" for name, value in chosen.items())]


def platform_of(path: Path) -> int:
    """Returns the target platform of a Mach-O object for 64-bit ARM."""
    data = path.read_bytes()
    magic, processor, _, _, commands, *_ = struct.unpack_from("<8I", data)
    assert (magic, processor) == (0xFEEDFACF, 0x0100000C)
    at = 32
    for _ in range(commands):
        command, size, platform = struct.unpack_from("<3I", data, at)
        if command == 0x32:  # LC_BUILD_VERSION
            return platform
        at += size
    raise AssertionError("the object contains no platform")


@pytest.mark.gate
@pytest.mark.parametrize(
    ("preset", "target"),
    sweep(
        [(name, target) for name in PLATFORMS for target in ("torchette_core", "torchette_static")],
        ("ios", "torchette_core"),
    ),
)
def test_the_library_compiles(
    preset: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = options(preset, tmp_path, monkeypatch)
    run("cmake", "--preset", preset, "-B", tmp_path / "build", *more, "-DCMAKE_BUILD_TYPE=Debug", cwd=ROOT)
    run("cmake", "--build", tmp_path / "build", "--target", target)
    objects = list((tmp_path / "build").rglob("*.o"))
    assert len(objects) > (80 if target == "torchette_static" else 10)
    assert {platform_of(path) for path in objects} == {PLATFORMS[preset][2]}


@pytest.mark.gate
def test_the_app_configures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = options("ios-simulator", tmp_path, monkeypatch)
    swift = tmp_path / "swiftc"
    swift.write_text(SWIFT % json.dumps(INFO))
    swift.chmod(0o755)
    more += [f"-DCMAKE_Swift_COMPILER={swift}", "-DCMAKE_Swift_COMPILER_WORKS=1", "-DCMAKE_SYSTEM_NAME=iOS"]
    project = tmp_path / "torchette" / "examples" / "ios"
    shutil.copytree(EXAMPLE, project)
    for path in ("torchette", "CMakeLists.txt", "torchetteConfig.cmake"):
        (tmp_path / "torchette" / path).symlink_to(ROOT / path)
    for name in ("digits.pte", "seven.f32"):
        (project / name).touch()
    run("cmake", "-S", project, "-B", tmp_path / "build", *more, "-DCMAKE_OSX_ARCHITECTURES=arm64")
    commands = run("ninja", "-C", tmp_path / "build", "-t", "commands", "digits").stdout
    (link,) = (line for line in commands.splitlines() if f"{swift} " in line and "-emit-executable" in line)
    for word in ("DigitsApp.swift", "Torchette.swift", "libtorchette.a", "-o digits.app/digits"):
        assert word in link
    assert "-DTORCHETTE" not in link, "definitions with values are not for Swift"
    include_folders = re.findall(r"-I ?(\S+)", link)
    assert {True} == {Path(folder).is_dir() for folder in include_folders}
    assert any((Path(folder) / "module.modulemap").exists() for folder in include_folders)
    assert any((Path(folder) / "torchette/extension/c_api.h").exists() for folder in include_folders)


def test_app_calls_existing_functions() -> None:
    app, binding = (EXAMPLE / "DigitsApp.swift").read_text(), BINDING.read_text(encoding="utf-8")
    for declaration in ("final class Module", "init(filePath:", "struct Tensor<T: Scalar>", "func scalars()"):
        assert f"public {declaration}" in binding
    assert "Module(filePath: " in app and "Tensor<Float>(module.forward(" in app and ".scalars()" in app
    assert "func forward<T>(_ input: Tensor<T>) throws -> [Value]" in binding
    assert "import Torchette" not in app, "CMake compiles both into one module"
