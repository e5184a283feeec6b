# SPDX-License-Identifier: BSD-3-Clause
# Tests the bindings for Java, Kotlin, Rust and Swift. Each compiles without warnings, computes the results of Python for the digits
# example, and reports the runtime's error for each invalid call. tests/build/test_web.py tests JavaScript.

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.building import BUILD, CC, ROOT, built, run
from tests.extension import c_abi
from tests.models import artifacts

EXTENSION = ROOT / "torchette/extension"
LINK = (f"-L{BUILD}", "-ltorchette", f"-Wl,-rpath,{BUILD}")

# The errors that the test program of every language prints, by the name of the case.
EXPECTED_ERRORS = {
    "file": "AccessFailed: cannot open none.pte: No such file or directory",
    "data": "AccessFailed: cannot open none.ptd: No such file or directory",
    "shape": "8 elements do not match a tensor of shape [3, 3]",
    "method": "InvalidArgument: there is no method backward",
    "count": "InvalidArgument: method forward expects 1 inputs, got 0",
    "none": "InvalidArgument: input 0 of method forward must be a tensor, got None",
    "kind": "InvalidArgument: input 0 must be a tensor",
    "dtype": "InvalidArgument: input 0 has dtype int32, expected float32",
    "sizes": "InvalidArgument: input 0 has size 4 in dimension 0, expected 2 to 2",
    "fixed": "InvalidArgument: input 1 must be the value that the model was exported with",
}

ANDROID = {
    "android.app.Activity": "protected void onCreate(android.os.Bundle state) {} "
    "public void setContentView(android.widget.TextView view) {} "
    "public java.io.File getFilesDir() { return null; } "
    "public android.content.res.AssetManager getAssets() { return null; }",
    "android.content.res.AssetManager": "public java.io.InputStream open(String name) throws java.io.IOException "
    "{ throw new java.io.IOException(); }",
    "android.os.Bundle": "",
    "android.widget.TextView": "public TextView(android.app.Activity activity) {} "
    "public void setTextSize(float size) {} public void setText(CharSequence text) {}",
}


def tool(name: str, package: str) -> str:
    """Returns the path of a program. Skips the test if it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (apt install {package})")
    return path


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    built("torchette_shared")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Returns the files of the digits network and of an image."""
    folder = tmp_path_factory.mktemp("digits")
    (folder / "digits.pte").write_bytes(artifacts.our_file("digits"))
    (folder / "picture.f32").write_bytes(artifacts.args("digits")[0].numpy().tobytes())
    return [folder / "digits.pte", folder / "picture.f32"]


def check_digit(printed: str) -> None:
    best, score = printed.split()
    expected = artifacts.eager("digits")[0]
    assert int(best) == int(expected.argmax()) and abs(float(score) - float(expected.max())) < 2e-4


def check_errors(printed: str) -> dict[str, str]:
    """Compares the lines of a test program with EXPECTED_ERRORS and with the scores of eager mode. Returns the lines by name."""
    from tests.extension.counter import Counter, X

    lines = dict(line.split(": ", 1) for line in printed.splitlines())
    wrong = {
        name: lines.get(name) for name, text in EXPECTED_ERRORS.items() if text not in lines.get(name, "")
    }
    assert not wrong, wrong
    numbers = X.new_tensor([-1, -0.5, 0, 0.5, 1, 2, 3, 4]).reshape(2, 4)
    scores = [float(number) for number in lines["scores"].strip("[]").split(",")]
    np.testing.assert_allclose(scores, Counter()(numbers)[0].detach().numpy().flatten(), rtol=1e-5)
    assert len(set(scores)) > 1
    return lines


@pytest.mark.gate
@pytest.mark.xdist_group("java")
def test_java(digits: list[Path], counter: list[Path], rows: Path, jni: Path, tmp_path: Path) -> None:
    javac, java = tool("javac", "default-jdk-headless"), tool("java", "default-jdk-headless")
    sources = [*(EXTENSION / "java").rglob("*.java"), ROOT / "tests/extension/ModuleTest.java"]
    sources.append(ROOT / "examples/digits/Digits.java")
    # The Android app, with stubs of the Android classes that it uses.
    sources += (ROOT / "examples/android").rglob("*.java")
    for name, body in ANDROID.items():
        package, _, simple = name.rpartition(".")
        sources.append(tmp_path / f"{simple}.java")
        sources[-1].write_text(f"package {package};\npublic class {simple} {{ {body} }}\n")
    lint = ("-Xlint:all,-options", "-Werror", "--release", "8")  # supported by the Android tools
    run(javac, *lint, "-d", tmp_path, *sources)
    utf8 = ("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")
    command = (java, "-Xcheck:jni", *utf8, f"-Djava.library.path={jni}", "-cp", tmp_path)
    check_digit(run(*command, "Digits", *digits).stdout)
    shutil.copy(counter[0], counter[0].parent / "m\N{GRINNING FACE}del.pte")
    lines = check_errors(run(*command, "ModuleTest", *counter, rows).stdout)
    assert "AccessFailed: cannot open \N{GRINNING FACE}/none.pte" in lines["emoji"]
    assert lines["zero"].startswith("IllegalArgumentException|a string contains U+0000 at index ")
    closed = {"closed", "closed methods", "closed metadata"}
    assert {lines[name] for name in closed} == {"IllegalStateException|the module is closed"}
    assert "WARNING" not in "".join(lines.values()), lines


@pytest.mark.gate
@pytest.mark.xdist_group("java")
def test_kotlin(digits: list[Path], jni: Path, tmp_path: Path) -> None:
    """Uses the oldest Kotlin compiler of Linux distributions; later compilers accept the same source."""
    javac, kotlinc = tool("javac", "default-jdk-headless"), tool("kotlinc", "kotlin")
    run(javac, "-d", tmp_path, "--release", "8", "-Xlint:-options", *(EXTENSION / "java").rglob("*.java"))
    source, program = ROOT / "examples/digits/Digits.kt", tmp_path / "digits.jar"
    run(kotlinc, "-Werror", "-cp", tmp_path, source, "-include-runtime", "-d", program)
    path = os.pathsep.join(map(str, (tmp_path, program)))
    check_digit(run("java", f"-Djava.library.path={jni}", "-cp", path, "DigitsKt", *digits).stdout)


@pytest.fixture(scope="module")
def jni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the JNI library."""
    home = Path(tool("javac", "default-jdk-headless")).resolve().parents[1]
    folder = tmp_path_factory.mktemp("jni")
    strict = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
    include = ("-I", home / "include", "-I", home / "include/linux", "-I", ROOT)
    native = EXTENSION / "java/torchette_jni.c"
    run(CC, *strict, *include, native, "-o", folder / "libtorchette_jni.so", *LINK)
    return folder


@pytest.mark.gate
def test_rust(digits: list[Path], counter: list[Path], rows: Path, tmp_path: Path) -> None:
    rustc = tool("rustc", "rustc")
    strict = ("--edition", "2021", "-D", "warnings", "-C", f"linker={CC}")
    crate = tmp_path / "libtorchette.rlib"
    source = EXTENSION / "rust/src/lib.rs"
    run(rustc, *strict, "--crate-name", "torchette", "--crate-type", "rlib", source, "-o", crate)
    link = ("-L", f"native={BUILD}", "-l", "torchette", "-C", f"link-arg=-Wl,-rpath,{BUILD}")
    for program in ("examples/digits/digits.rs", "tests/extension/module_test.rs"):
        to = tmp_path / Path(program).stem
        run(rustc, *strict, "--extern", f"torchette={crate}", *link, ROOT / program, "-o", to)
    check_digit(run(tmp_path / "digits", *digits).stdout)
    lines = check_errors(run(tmp_path / "module_test", *counter, rows).stdout)
    assert "has dim order [0, 2, 3, 1]" in lines["order"]
    # While an output is in use, the compiler rejects running, closing or moving its module and dropping its inputs.
    use = 'let out = module.execute("forward", &[Value::tensor(&x, &[2, 4]).unwrap()]).unwrap(); BAD; out.len();'
    for bad in ('module.reset("forward").unwrap()', "drop(module)", "drop(x)", ""):
        body = f"pub fn f(mut module: Module, x: Vec<f32>) {{ {use.replace('BAD', bad)} }}"
        (tmp_path / "bad.rs").write_text(f"use torchette::{{Module, Value}};\n{body}\n")
        status = 1 if bad else 0
        errors = run(
            *(rustc, "--edition", "2021", "--crate-type", "lib", "--emit", "metadata", "--out-dir", tmp_path),
            *("--extern", f"torchette={crate}", tmp_path / "bad.rs"),
            status=status,
        ).stderr
        assert bool(re.search(r"E0499|E0505", errors)) == bool(bad), errors


@pytest.mark.gate
def test_cargo_finds_the_library(digits: list[Path], tmp_path: Path) -> None:
    """build.rs finds the library in a folder with the layout of an installation."""
    cargo = tool("cargo", "cargo")
    prefix = tmp_path / "prefix/lib"
    prefix.mkdir(parents=True)
    (prefix / "libtorchette.so").symlink_to(BUILD / "libtorchette.so")
    project = shutil.copytree(EXTENSION / "rust", tmp_path / "rust")
    (project / "examples").mkdir()
    shutil.copy(ROOT / "examples/digits/digits.rs", project / "examples")
    environment = {**os.environ, "TORCHETTE_PREFIX": str(prefix.parent), "LD_LIBRARY_PATH": str(prefix)}
    command = (cargo, "run", "-q", "--offline", "--example", "digits", "--", *digits)
    check_digit(run(*command, cwd=project, env=environment).stdout)


def test_the_module_map_of_swift_compiles(tmp_path: Path) -> None:
    """Clang imports the C interface like Swift, and the Swift source calls only functions of the interface."""
    clang = tool("clang", "clang")
    swift = EXTENSION / "swift/Sources"
    (tmp_path / "main.c").write_text(
        "#pragma clang module import CTorchette\n"
        "int main(void) {\n  torchette_module_t* module;\n"
        '  return torchette_module_open("none.pte", 1, &module) == TORCHETTE_OK;\n}\n'
    )
    modules = ("-fmodules", f"-fmodules-cache-path={tmp_path}", "-I", ROOT)
    module_map = f"-fmodule-map-file={swift / 'CTorchette/module.modulemap'}"
    run(clang, "-Wall", "-Werror", *modules, module_map, tmp_path / "main.c", "-o", tmp_path / "main", *LINK)
    assert "cannot open none.pte" in run(tmp_path / "main").stderr
    source = (swift / "Torchette/Torchette.swift").read_text(encoding="utf-8")
    called = set(re.findall(r"\b(torchette_\w+)\(", source)) - {"torchette_value_t"}
    assert len(called) > 10 and called <= set(c_abi.declared()), called - set(c_abi.declared())


@pytest.mark.gate
def test_swift(digits: list[Path], tmp_path: Path) -> None:
    swiftc = tool("swiftc", "swiftlang")
    swift = EXTENSION / "swift/Sources"
    sources = [swift / "Torchette/Torchette.swift", ROOT / "examples/digits/digits.swift"]
    text = sources[1].read_text(encoding="utf-8").replace("import Torchette\n", "")
    (tmp_path / "digits.swift").write_text(text)  # one module
    flags = ("-parse-as-library", "-warnings-as-errors", "-I", swift / "CTorchette", "-Xcc", f"-I{ROOT}")
    link = ("-L", BUILD, "-ltorchette", "-Xlinker", "-rpath", "-Xlinker", BUILD)
    run(swiftc, *flags, sources[0], tmp_path / "digits.swift", *link, "-o", tmp_path / "digits")
    check_digit(run(tmp_path / "digits", *digits).stdout)


def test_docs_pages_have_the_examples() -> None:
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("bindings.md", "java.md"))
    (shown,) = re.findall(r"^```java\n(.*?)^```", pages, re.M | re.S)
    examples = ROOT / "examples/digits"
    assert (examples / "Digits.java").read_text(encoding="utf-8").endswith(shown)
    linked = set(re.findall(r"\]\(\.\./examples/digits/([\w.]+)\)", pages))
    assert linked == {
        path.name for path in examples.iterdir() if path.suffix in (".kt", ".swift", ".rs", ".mjs")
    }


@pytest.mark.parametrize(("language", "suffix"), [("java", "java"), ("rust", "rs"), ("swift", "swift")])
def test_bindings_are_small(language: str, suffix: str) -> None:
    """The wrapper of the language model library is counted separately."""
    of_llms = {True: 0, False: 0}
    for path in (EXTENSION / language).rglob(f"*.{suffix}"):
        of_llms["llm" in path.parts[-3:-1]] += len(path.read_text(encoding="utf-8").splitlines())
    assert 100 < of_llms[False] < 600 and of_llms[True] < 600


@pytest.mark.gate
def test_the_android_project_links(tmp_path: Path) -> None:
    """Builds the JNI library that contains the runtime, with the commands of the Gradle project, if an NDK is installed."""
    ndk = os.environ.get("ANDROID_NDK_HOME") or os.environ.get("ANDROID_NDK")
    if ndk is None:
        pytest.skip("the Android NDK is not installed (set ANDROID_NDK_HOME)")
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ndk}/build/cmake/android.toolchain.cmake"
    machine = ("-DANDROID_ABI=arm64-v8a", "-DANDROID_PLATFORM=android-24", toolchain)
    run(
        "cmake",
        "-S",
        EXTENSION / "java",
        "-B",
        tmp_path,
        "-G",
        "Ninja",
        *machine,
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    run("cmake", "--build", tmp_path, "--target", "torchette_jni")
    assert list(tmp_path.rglob("libtorchette_jni.so"))


def test_android_project_refers_to_existing_files() -> None:
    """The folders, the class and the library script of the project exist. Java loads the library of the script's target."""
    project = ROOT / "examples/android"
    build = (project / "app/build.gradle").read_text(encoding="utf-8")
    for path in re.findall(r"(?:path|srcDirs?|from) '([^']+)'", build):
        assert (project / "app" / path).exists(), path
    (name,) = re.findall(
        r'android:name="\.(\w+)"', (project / "app/src/main/AndroidManifest.xml").read_text()
    )
    (namespace,) = re.findall(r"namespace '([\w.]+)'", build)
    source = project / "app/src/main/java" / namespace.replace(".", "/") / f"{name}.java"
    assert f"package {namespace};" in source.read_text(encoding="utf-8")
    (target,) = re.findall(r"targets '(\w+)'", build)
    cmake = (EXTENSION / "java/CMakeLists.txt").read_text(encoding="utf-8")
    module = (EXTENSION / "java/org/torchette/Module.java").read_text(encoding="utf-8")
    assert f"add_library({target} SHARED" in cmake and f'loadLibrary("{target}")' in module
