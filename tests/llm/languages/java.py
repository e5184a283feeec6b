# SPDX-License-Identifier: BSD-3-Clause
# The Java classes of language models with their JNI library, compiled for this machine.

from __future__ import annotations

from pathlib import Path

from tests.building import BUILD, CC, ROOT, built, run
from tests.extension.test_bindings import tool

JAVA = ROOT / "torchette/extension/java"


def compile_java(folder: Path, *sources: Path) -> list[str | Path]:
    """Compiles the library, the classes and `sources` into a folder without warnings. Returns the command that runs a
    class, without its name."""
    javac, java = tool("javac", "default-jdk-headless"), tool("java", "default-jdk-headless")
    built("torchette_llm_shared")
    include = Path(javac).resolve().parents[1] / "include"
    strict = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
    headers = ("-I", include, "-I", include / "linux", "-I", ROOT)
    libraries = (f"-L{BUILD}", "-ltorchette_llm", "-ltorchette", f"-Wl,-rpath,{BUILD}")
    run(
        CC,
        *strict,
        *headers,
        JAVA / "torchette_llm_jni.c",
        "-o",
        folder / "libtorchette_llm_jni.so",
        *libraries,
    )
    classes = sorted((JAVA / "org/torchette/extension/llm").glob("*.java"))
    run(javac, "-Xlint:all,-options", "-Werror", "--release", "8", "-d", folder, *classes, *sources)
    encoding = ("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")
    return [java, "-Xcheck:jni", *encoding, f"-Djava.library.path={folder}", "-cp", folder]
