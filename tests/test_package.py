# SPDX-License-Identifier: BSD-3-Clause
# In: this checkout. Out: a wheel that runs a model in an environment with only numpy; limits for the time and size of imports.

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.building import BUILD, CXX, configure, locked, run
from tests.extension.conftest import two_methods  # noqa: F401
from tests.extension.test_guides import build_and_run_guide
from torchette import __version__
from torchette.runtime import Runtime

ROOT = Path(__file__).resolve().parents[1]
# Modules that `import torchette` may load in addition to those of a bare interpreter; most are for importlib and typing.
IMPORT_BUDGET = 60
# Modules that the compiler's entry point may load in addition to torch; nearly all belong to the compiler.
EXIR_BUDGET = 123
# Bytes of an installed package, with the bytecode that pip adds; additional bytes if the XNNPACK library was built.
INSTALLED, XNNPACK = 12_100_000, 2_000_000
SOURCES = ("torchette/llm/sources.tar.xz", "torchette/sources.tar.xz")
# Folders with separate budgets: `docs/decisions/0023-parts-have-budgets-of-their-own.md`.
PARTS = {"llm": 1_100_000, "backends/vulkan": 156_000, "compat": 400_000, "extension/compat": 170_000}

RUN = """
import sys
import numpy as np
import torchette
import torchette.runtime
model, inputs, outputs = sys.argv[1:]
arrays = np.load(inputs)
result = torchette.load(model)(*(arrays[name] for name in arrays.files))
np.save(outputs, result)
assert "torch" not in sys.modules
print(torchette.__file__)
"""

# A program; the comments contain mypy's message for their line.
USER = """
import torchette
from torchette.llm import Session
from torchette.runtime import Runtime

model = torchette.load("net.pte")
reveal_type(model)  # "torchette.model.Model"
reveal_type(torchette.compile(model, (1,)).planned_bytes)  # type is "int"
reveal_type(Runtime.get())  # "torchette.runtime.runtime.Runtime"
reveal_type(torchette.runtime.Runtime.get().load_program(b"").method_names)  # "set[str]"
reveal_type(torchette.errors.InputError("x").hints)  # "tuple[str, ...]"
reveal_type(Session)  # "def (
torchette.load(3)  # incompatible type "int"
torchette.lode("net.pte")  # has no attribute "lode"
"""


def python(*arguments: str | Path, cwd: str | Path = ROOT.anchor) -> str:
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel in the build folder of ./dev, which contains compiled objects."""
    folder = tmp_path_factory.mktemp("wheel")
    with locked():
        python(
            *(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-w", folder),
            *("-C", f"build-dir={BUILD}"),
        )
        configure()
        python(
            "cmake", "--build", BUILD
        )  # the library in a wheel has fewer backends than the library of a checkout
    return next(folder.glob("*.whl"))


def test_wheel_holds_schema_headers_and_native_module(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "torchette/schema/program.fbs" in names
    assert "torchette/runtime/method.h" in names
    assert "torchette/runtime/kernel.h" in names
    assert "torchette/extension/compat/executorch/runtime/executor/program.h" in names
    assert len([name for name in names if re.match(r"torchette/runtime/_native.*\.so$", name)]) == 1
    assert "torchette/lib/libtorchette.so" in names
    assert "torchette/lib/libtorchette.a" not in names  # torchette build compiles it
    known = r"\.(py|typed|fbs|h|c|cpp|ld|in|js|ts|html|css|def|so|a|md|txt|json|sh|patch)$|dist-info/|^torchette/(lib/cmake/(torchette|executorch)|extension/compat)/[\w-]+\.cmake$"
    page = "torchette/devtools/report/page.zip"
    assert sorted(name for name in names if not re.search(known, name)) == [
        "torchette/bin/executor_runner",
        page,
        *SOURCES,
    ]
    packed = zipfile.ZipFile(io.BytesIO(zipfile.ZipFile(wheel).read(page))).namelist()
    folder = ROOT / "torchette" / "devtools" / "report" / "page"
    assert sorted(packed) == sorted(path.name for path in folder.iterdir())
    assert not any(name.startswith("torchette/devtools/report/page/") for name in names)
    packed = []
    for name in SOURCES:
        with tarfile.open(fileobj=io.BytesIO(zipfile.ZipFile(wheel).read(name))) as archive:
            packed += archive.getnames()
    assert not {name for name in names if name.endswith(".cpp")}
    sources = (path for part in ("kernels", "llm") for path in (ROOT / "torchette" / part).rglob("*.[ch]*"))
    assert {path.relative_to(ROOT).as_posix() for path in sources if path.suffix in (".cpp", ".h")} <= {
        *packed
    }
    assert len(packed) == len({*packed})
    assert not [name for name in packed if not (ROOT / name).is_file()]


def test_projects_find_the_installed_package(
    wheel: Path,
    two_methods: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The project of docs/cpp.md, from the wheel, which has the shared library."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    prefix = tmp_path / "site" / "torchette"
    build_and_run_guide(prefix, tmp_path / "guide", "ON", two_methods)
    project = tmp_path / "static" / "CMakeLists.txt"
    project.parent.mkdir()
    text = (
        (tmp_path / "guide" / "CMakeLists.txt")
        .read_text()
        .replace("REQUIRED)", "REQUIRED COMPONENTS static)")
    )
    project.write_text(text)
    (tmp_path / "static" / "main.cpp").write_text("int main() {}")
    build = tmp_path / "static" / "build"
    error = run("cmake", "-S", project.parent, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", status=1).stderr
    assert "torchette build --target host" in " ".join(error.split())


@pytest.mark.slow
def test_the_installed_package_builds_for_a_target(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    command = ["build", "--target", "host", "--compiler", "c++", "--ops", "aten::mm.out,aten::add.out"]
    more = ["--dtypes", "float32", "--optimize", "size", "-o", str(tmp_path / "made")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-m", "torchette", *command, *more], capture_output=True, text=True,
        cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "aten::mm.out" in done.stdout and "aten::bmm.out" not in done.stdout
    assert (tmp_path / "made" / "lib" / "libtorchette.a").exists()
    python(tmp_path / "made" / "bin" / "executor_runner", "--help")


@pytest.mark.slow
def test_the_installed_package_compiles_operators_and_models(wheel: Path, tmp_path: Path) -> None:
    """`custom build` works with its example, and the sources of `codegen` compile unchanged."""
    torch = pytest.importorskip("torch")
    import torchette

    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    page = (ROOT / "docs" / "custom-kernels.md").read_text()
    (tmp_path / "my_op.cpp").write_text(page.split("```cpp\n")[1].split("```")[0])
    torchette.compile(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),)).save(tmp_path / "net.pte")
    script = (
        "import numpy, torchette.runtime as r; r.load_kernels('libmy_op.so'); x = numpy.ones(2, 'float32');"
    )
    script += "out = numpy.zeros(2, 'float32'); r.call_kernel('my::scale.out', [x, 3.0, out]); assert out[1] == 3; print(r)"
    for command in (
        ["-m", "torchette", "custom", "build", "my_op.cpp"],
        ["-c", script],
        ["-m", "torchette", "codegen", "net.pte", "-o", "generated"],
    ):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert command[0] == "-m" or str(tmp_path / "site") in done.stdout
    sources = sorted((tmp_path / "generated").glob("*.cpp"))
    assert {"net.cpp", "net_linear.cpp"} <= {source.name for source in sources}
    flags = ("-std=c++17", "-O0", "-fwrapv", "-fsyntax-only")
    run(CXX, *flags, *sources)


def test_a_type_checker_sees_the_public_types(wheel: Path, tmp_path: Path) -> None:
    """Runs mypy on a user's program with the installed package; torch is not installed there, which saves time."""
    python(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    bare = tmp_path / "venv" / "bin" / "python"
    site = python(bare, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "program.py").write_text(USER)
    command = ["-m", "mypy", "--strict", "--python-executable", bare, "--cache-dir", tmp_path, "program.py"]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    messages = re.findall(r"^program\.py:(\d+): (?:note|error): (.*)$", done.stdout, re.M)
    expected = re.findall(r"# (.+)$", USER, re.M)
    assert len(messages) == len(expected), done.stdout + done.stderr
    for (_, message), text in zip(messages, expected, strict=True):
        assert text in message, done.stdout


def test_runs_with_only_numpy(wheel: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import torchette

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()).eval()
    image = torch.randn(1, 3, 8, 8)
    torchette.compile(module, (image,)).save(tmp_path / "model.pte")
    np.savez(tmp_path / "inputs.npz", image.numpy())

    python(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    bare = tmp_path / "venv" / "bin" / "python"
    site = Path(python(bare, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    python(sys.executable, "-m", "pip", "--python", bare, "install", "--no-deps", "--no-index", wheel)
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (site / part.name).symlink_to(part)
    assert "ModuleNotFoundError" in python(
        bare, "-c", "try: import torch\nexcept ModuleNotFoundError as e: print(repr(e))"
    )

    script = tmp_path / "run.py"
    script.write_text(RUN)
    output = tmp_path / "output.npy"
    where = python(bare, script, tmp_path / "model.pte", tmp_path / "inputs.npz", output)
    assert str(site) in where, "the installed package must have run, not the checkout"
    with torch.inference_mode():
        expected = module(image).numpy()
    np.testing.assert_allclose(np.load(output), expected, rtol=1e-4, atol=1e-5)
    assert "native module" in python(tmp_path / "venv" / "bin" / "torchette", "doctor")
    assert python(tmp_path / "venv" / "bin" / "torchette", "--cmake-prefix").strip() == str(
        site / "torchette"
    )
    assert "usage" in python(tmp_path / "venv" / "bin" / "executor_runner", "--help")

    checkout = tmp_path / "checkout"  # as git clones it: without a native module
    for name in run("git", "-C", ROOT, "ls-files", "-z", "torchette").stdout.split("\0")[:-1]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).symlink_to(ROOT / name)
    load = f"import torchette; torchette.load({str(tmp_path / 'model.pte')!r}); print(torchette.__file__)"
    assert str(checkout) in python(bare, "-c", load, cwd=checkout)
    changed = checkout / "torchette" / "model.py"
    changed.unlink()
    changed.write_text((ROOT / "torchette" / "model.py").read_text() + "# changed\n")
    refused = subprocess.run(
        [bare, "-c", load], capture_output=True, text=True, cwd=checkout, check=False
    ).stderr
    assert re.search(
        r"NativeModuleError: .*torchette/model.py differs from the installed package", refused
    ), refused
    assert "pip install ." in refused

    package = site / "torchette"
    size = _bytes(package)
    for part, budget in PARTS.items():
        size -= (part_size := _bytes(package / part))
        assert part_size < budget, f"{part} has {part_size:,} bytes"
    if Runtime.get().backend_registry.get_option("XnnpackBackend", "library"):
        size -= XNNPACK
    assert size < INSTALLED, f"{size:,} bytes"
    assert list(package.rglob("*.pyc")), "pip has compiled the sources"


@pytest.mark.slow
def test_dev_wheel_writes_a_manylinux_wheel(tmp_path: Path) -> None:
    """A separate build: the tag is that of the symbol versions, and the repair added only the tag."""
    run(ROOT / "dev", "wheel")
    built_wheel = max((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    tag = re.search(r"-manylinux_(\d+)_(\d+)_(\w+)\.whl$", built_wheel.name)
    assert tag and tag[3] == platform.machine(), built_wheel.name
    zipfile.ZipFile(built_wheel).extractall(tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name.partition("/")[0] for name in names} == {"torchette", f"torchette-{__version__}.dist-info"}
    assert "torchette/lib/libtorchette.so" in names and "torchette/bin/executor_runner" in names
    (described,) = tmp_path.glob("*.dist-info/WHEEL")
    assert f"manylinux_{tag[1]}_{tag[2]}_{tag[3]}" in described.read_text()
    needed: set[tuple[int, ...]] = set()
    for name in names:
        if (tmp_path / name).read_bytes()[:4] == b"\x7fELF":
            symbols = run("objdump", "-T", tmp_path / name).stdout
            versions = re.findall(r"\bGLIBC_([\d.]+)", symbols)
            needed |= {tuple(map(int, version.split("."))) for version in versions}
    assert needed and max(needed)[:2] <= (int(tag[1]), int(tag[2]))
    assert sum((tmp_path / name).stat().st_size for name in names) < INSTALLED


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_import_is_cheap() -> None:
    code = (
        "import sys; bare = len(sys.modules); import torchette; print(len(sys.modules) - bare, *sys.modules)"
    )
    count, *modules = python(
        sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    ).split()
    assert int(count) <= IMPORT_BUDGET
    assert not {"numpy", "torch", "rich"} & set(modules)


def test_importing_the_compiler_over_torch_is_cheap() -> None:
    """The import of the compiler does not import sympy, which would double the number of modules and needs half a second."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import torch; bare = set(sys.modules); "
    code += "from torchette.exir import to_edge_transform_and_lower; print(*(set(sys.modules) - bare))"
    modules = python(sys.executable, "-c", code).split()
    assert "torchette.exir.program" in modules
    assert len(modules) <= EXIR_BUDGET, sorted(modules)
    assert not {"sympy", "executorch", "numpy"} & set(modules)


def test_versions_of_the_pinned_torch_are_equal() -> None:
    """Four files contain the version of the pinned torch, because each is read separately; the versions are equal."""
    from tests.conftest import PINNED_TORCH
    from torchette.packages import TESTED_TORCH

    assert f'readonly TORCH="torch=={PINNED_TORCH}"' in (ROOT / "dev").read_text()
    assert f'"torch=={PINNED_TORCH}"' in (ROOT / "pyproject.toml").read_text()
    assert PINNED_TORCH.startswith(TESTED_TORCH[0] + ".")


def test_the_version_is_stored_once(wheel: Path) -> None:
    """CMake and the wheel read the version from the package; Cargo and the changelog contain the same version."""
    (name,) = [
        member for member in zipfile.ZipFile(wheel).namelist() if member.endswith(".dist-info/METADATA")
    ]
    metadata = zipfile.ZipFile(wheel).read(name).decode()
    assert f"\nVersion: {__version__}\n" in metadata
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", metadata, re.M))
    assert set(urls) == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
    for address in urls.values():
        assert address.startswith(urls["Repository"])
        assert "/blob/main/" not in address or (ROOT / address.partition("/blob/main/")[2]).is_file()
    assert f'\nversion = "{__version__}"\n' in (ROOT / "torchette/extension/rust/Cargo.toml").read_text()
    newest = re.search(r"^## \[(.*)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest and newest[1] == __version__
    assert newest[2] == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", newest[2])
