# SPDX-License-Identifier: BSD-3-Clause
# The runtime as WebAssembly: models in Node.js, through torchette.js and WASI, have the same results as on this
# machine.

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import torchette
from tests.building import ROOT, run
from tests.models import artifacts
from torchette import schema, targets
from torchette.build import library, selection, toolchain, web
from torchette.devtools.device_memory import bills

HERE = Path(__file__).parent
MODELS = ("digits", "keyword_spotting")

pytestmark = [pytest.mark.gate, pytest.mark.xdist_group("wasm")]


def node(*arguments: str | Path, **more) -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node.js is not installed (apt install nodejs)")
    return run(program, "--no-warnings", *arguments, **more).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models with a runtime for their kernels, and sine.pte, which requires another kernel."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed (pip install ziglang)")
    folder = tmp_path_factory.mktemp("web")
    for name in MODELS:
        (folder / f"{name}.pte").write_bytes(artifacts.our_file(name))
    web.build([folder / f"{name}.pte" for name in MODELS], folder)

    class Sine(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    torchette.compile(Sine().eval(), (torch.ones(2),)).save(folder / "sine.pte")
    return folder


@pytest.fixture(scope="module")
def in_node(folder: Path) -> dict:
    inputs = {}
    for name in MODELS:
        (array,) = artifacts.args(name)
        inputs[name] = [array.flatten().tolist(), list(array.shape)]
    return json.loads(node(HERE / "module_test.mjs", folder, input=json.dumps(inputs)))


@pytest.mark.parametrize("name", MODELS)
def test_models_match_host_results(in_node: dict, name: str) -> None:
    got = in_node[name]
    host = artifacts.compiled(name)(*artifacts.args(name))
    assert got["methods"] == ["forward"] and got["dtype"] == "float32" and got["shape"] == list(host.shape)
    assert got["inputs"][0]["shape"] == got["inputs"][0]["least"] == list(artifacts.args(name)[0].shape)
    np.testing.assert_allclose(np.reshape(got["data"], host.shape), host.numpy(), rtol=1e-5, atol=1e-6)
    assert got["same"], "the second execution has other results"


@pytest.mark.parametrize("name", MODELS)
def test_memory_growth_matches_bill(in_node: dict, name: str) -> None:
    """In addition to the bill, there are the Method, its allocators, and padding of the pools."""
    (bill,) = bills(artifacts.our_file(name), "wasm32")
    assert bill.temp is not None
    assert 0 <= in_node[name]["grown"] - bill.ram < 512
    assert in_node[name]["kept"], "the second execution allocates more memory"


def test_errors_are_exceptions_with_runtime_messages(in_node: dict) -> None:
    errors = in_node["errors"]
    assert errors == {
        "count": "TorchetteError InvalidArgument: forward: expected 1 inputs, got 0",
        "dtype": "TorchetteError InvalidArgument: input 0 of forward has dtype float32, got float64",
        "shape": "TorchetteError InvalidArgument: input 0 has size 64 in dimension 0, expected 1 to 1",
        "rank": "TorchetteError InvalidArgument: input 0 has rank 1, expected 2",
        "kind": "TorchetteError InvalidArgument: input 0 of forward must be a Tensor or a typed array",
        "elements": "TorchetteError InvalidArgument: 4 elements do not make a tensor of shape [5]",
        "width": "TorchetteError InvalidArgument: elements of float64 have 8 bytes, but elements of Float32Array have 4",
        "method": "TorchetteError InvalidArgument: there is no method backward; the program has forward",
        "bytes": errors["bytes"],
        "kernels": errors["kernels"],
        "file": errors["file"],
    }
    assert errors["bytes"].startswith("TorchetteError InvalidProgram: ")
    assert (
        errors["kernels"].startswith("TorchetteError OperatorMissing: ")
        and "aten::sin.out" in errors["kernels"]
    )
    assert errors["file"].startswith("TorchetteError AccessFailed: ") and "nothing.pte" in errors["file"]


def test_module_is_small_and_has_no_wasi_imports(folder: Path) -> None:
    """Two imports, both from torchette.js: no WASI, and no function table of a C library."""
    wasm = (folder / "torchette.wasm").read_bytes()
    script = "const m = new WebAssembly.Module(require('fs').readFileSync(process.argv[1]));"
    script += (
        "console.log(JSON.stringify(WebAssembly.Module.imports(m).map(i => i.module + '.' + i.name).sort()))"
    )
    assert json.loads(node("-e", script, folder / "torchette.wasm")) == ["torchette.log", "torchette.now"]
    assert len(wasm) < 400_000 and len(gzip.compress(wasm)) < 140_000


def test_guide_script_runs(folder: Path) -> None:
    page = (ROOT / "docs/browser.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```js\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (folder / "guide.mjs").write_text(script, encoding="utf-8")
    printed = node(folder / "guide.mjs")
    assert "[ 1, 10 ] float32" in printed
    assert "InvalidArgument input 0 of forward has dtype float32, got float64" in printed


def test_the_folder_is_an_npm_package(folder: Path, tmp_path: Path) -> None:
    """Installed by npm, with its types, it runs the example of examples/digits."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed (apt install npm)")
    package = json.loads((folder / "package.json").read_text())
    assert package["version"] == torchette.__version__ and package["type"] == "module"
    packed = json.loads(run(npm, "pack", "--json", folder, cwd=tmp_path).stdout)[0]
    assert {"torchette.js", "torchette.wasm", package["exports"]["."]["types"][2:]} <= {
        entry["path"] for entry in packed["files"]
    }
    (tmp_path / "package.json").write_text("{}")
    run(npm, "install", "--offline", "--no-audit", "--no-fund", f"./{packed['filename']}", cwd=tmp_path)
    shutil.copyfile(ROOT / "examples/digits/digits.mjs", tmp_path / "digits.mjs")
    (array,) = artifacts.args("digits")
    (tmp_path / "picture.f32").write_bytes(array.numpy().tobytes())
    best, score = node(tmp_path / "digits.mjs", folder / "digits.pte", tmp_path / "picture.f32").split()
    expected = artifacts.compiled("digits")(array)[0]
    assert int(best) == int(expected.argmax()) and abs(float(score) - float(expected.max())) < 2e-4


BUNDLED = """
import { Module } from "torchette";
import { Llm } from "torchette/llm.js";
const [model] = process.argv.slice(2);
console.log((await Module.load(model)).methods.join());
await Llm.load(model).catch((error) => console.log(error.name));
"""
WEBPACK = """
import webpack from "webpack";
const one = (target) => ({
  target, mode: "production", entry: "./main.mjs", experiments: { outputModule: true },
  output: { path: `${process.cwd()}/${target}`, filename: "main.mjs", module: true },
});
webpack([one("web"), one("node")], (error, stats) => {
  console.log(JSON.stringify(error ?? stats.toJson({ all: false, errors: true, warnings: true })));
});
"""


def test_bundlers_accept_package(folder: Path, tmp_path: Path) -> None:
    """For browsers, without warnings. A bundle finds the runtimes of programs and of language models."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed (apt install npm)")
    site = shutil.copytree(folder, tmp_path / "site")
    shutil.copyfile(ROOT / "torchette/llm/web/llm.js", site / "llm.js")
    (site / "torchette_llm.wasm").write_bytes(b"no WebAssembly")
    (tmp_path / "main.mjs").write_text(BUNDLED)
    (tmp_path / "bundle.mjs").write_text(WEBPACK)
    (tmp_path / "package.json").write_text('{"private": true}')
    run(npm, "install", "--no-audit", "--no-fund", site, "esbuild@0.25", "webpack@5", cwd=tmp_path)
    esbuild = tmp_path / "node_modules/.bin/esbuild"
    options = ("--bundle", "--minify", "--format=esm", "--platform=browser", "--log-level=info")
    log = run(esbuild, tmp_path / "main.mjs", *options, f"--outfile={tmp_path}/es/main.mjs").stderr
    assert "warning" not in log.lower() and "error" not in log.lower(), log
    for name in ("torchette.wasm", "torchette_llm.wasm"):  # esbuild copies no files
        shutil.copyfile(site / name, tmp_path / "es" / name)
    stats = json.loads(node("bundle.mjs", cwd=tmp_path))
    assert [(one["errors"], one["warnings"]) for one in stats["children"]] == [([], []), ([], [])]
    copies = {path.read_bytes() for path in (tmp_path / "web").glob("*.wasm")}
    assert copies == {(site / name).read_bytes() for name in ("torchette.wasm", "torchette_llm.wasm")}
    for bundle in ("es", "node"):
        printed = node(tmp_path / bundle / "main.mjs", (folder / "digits.pte").as_uri())
        assert printed.splitlines() == ["forward", "CompileError"], bundle


@pytest.mark.slow  # ziglang compiles the C++ library first
def test_wasi_runner_matches_host(folder: Path, tmp_path: Path) -> None:
    target = targets.find("wasm32-wasi")
    compiler, common = toolchain.find_compiler(target), library.flags(small=False)
    chosen = selection.of_file(folder / "keyword_spotting.pte")
    units = library.units(target, chosen, "posix", common, small=False) + library.runner_units(common)
    toolchain.link(compiler, toolchain.compile_units(compiler, units), tmp_path / "runner.wasm", ["-s"])
    (array,) = artifacts.args("keyword_spotting")
    np.save(tmp_path / "input.npy", array.numpy())
    shutil.copyfile(folder / "keyword_spotting.pte", tmp_path / "model.pte")
    arguments = ["--model_path", "model.pte", "--inputs", "input.npy", "--output_file", "output"]
    node(HERE / "wasi.mjs", tmp_path, "runner.wasm", *arguments)
    host = artifacts.compiled("keyword_spotting")(array)
    output = np.load(tmp_path / "output-0.npy")
    np.testing.assert_allclose(output, host.numpy(), rtol=1e-5, atol=1e-6)


def test_javascript_dtypes_match_schema():
    text = (ROOT / "torchette" / "build" / "web" / "torchette.js").read_text()
    rows = re.findall(r'^  \[(\d+), \["(\w+)", (\w+)\]\],$', text, re.M)
    assert [(int(number), name) for number, name, _ in rows] == [
        (dtype.number, dtype.torch_name) for dtype in schema.DTYPES if dtype.is_computed
    ]
    types = (ROOT / "torchette" / "build" / "web" / "torchette.d.ts").read_text()
    declared = re.search(r"export type DType =(.*?);", types, re.S)[1]
    assert sorted(re.findall(r'"(\w+)"', declared)) == sorted(name for _, name, _ in rows)


@pytest.mark.parametrize("module", ["torchette", "llm"])
def test_types_match_module(module: str, tmp_path: Path) -> None:
    """Classes, and their methods and properties; functions."""
    web, page = ROOT / "torchette/build/web", ROOT / "torchette/llm/web"
    types = (web / f"{module}.d.ts").read_text(encoding="utf-8")
    declared = {
        name: set(re.findall(r"^  (?:static |readonly )*(\w+)(?=[(?:])", body, re.M)) - {"constructor"}
        for name, body in re.findall(r"^export class (\w+)[^{]*\{\n(.*?)^\}", types, re.M | re.S)
    }
    for path in (web / "torchette.js", page / "llm.js"):
        shutil.copy(path, tmp_path)
    script = (
        f'import * as all from "./{module}.js";'
        + """
        import { Tensor, TorchetteError } from "./torchette.js";
        const own = (it) => [...Object.getOwnPropertyNames(it.prototype), ...Object.getOwnPropertyNames(it)];
        const made = { Tensor: new Tensor(new Float32Array(1)), TorchetteError: new TorchetteError("", "") };
        const found = Object.entries(all).filter(([, it]) => it.prototype).map(([name, it]) => [name, [...own(it), ...Object.keys(made[name] ?? {})]]);
        const functions = Object.keys(all).filter((name) => !all[name].prototype);
        console.log(JSON.stringify([Object.fromEntries(found), functions]));"""
    )
    printed = node("--input-type=module", "-e", script, cwd=tmp_path)
    always = {"constructor", "length", "name", "prototype"}
    classes, functions = json.loads(printed)
    assert {name: set(members) - always for name, members in classes.items()} == declared
    assert functions == re.findall(r"^export function (\w+)", types, re.M)
    assert {"load", "memory"} <= declared["Module" if module == "torchette" else "Llm"]


TYPED = """
import { Module, Tensor, TorchetteError, type DType, type Signature, type Value } from "torchette";
import { Llm } from "torchette/llm.js";
const module: Module = await Module.load(new Uint8Array(8), { log: (level, message) => console.log(level + message) });
const [first]: Signature[] = module.inputs("forward");
const x = new Tensor(new Float32Array(4), first.shape ?? [4], "float32");
const outputs: Value[] = module.execute("forward", x, 1, 2n, true, null, new Float32Array(2));
const [scores] = module.forward(x);
if (scores instanceof Tensor) {
  const dtype: DType = scores.dtype;
  console.log(dtype, scores.data.length, scores.shape[0], module.memory, outputs.length);
}
try { module.loadMethod(); } catch (error) { if (error instanceof TorchetteError) console.log(error.code); }
// @ts-expect-error there is no such dtype
new Tensor(new Float32Array(4), [4], "float99");
// @ts-expect-error a string is no input
module.forward("text");
// @ts-expect-error load() alone makes one
new Module();
const llm = await Llm.load(new URL("file:///model.pte"), { progress: (bytes, total) => console.log(bytes, total) });
const messages = [{ role: "user", content: "Hello" }];
for await (const { text, token, top } of llm.chat(messages, { maxNewTokens: 3, tools: [{}], template: { enable_thinking: false } }))
  console.log(text, token, top[0]?.[1], llm.statistics.finish_reason);
for await (const piece of llm.generate([1, 2], { topP: 0.5, stop: ["x"], logitBias: { 3: -Infinity } })) console.log(piece.last);
// @ts-expect-error messages are a list
llm.chat("Hello");
// @ts-expect-error tools are a list
llm.chat(messages, { tools: "tools" });
"""


@pytest.mark.slow
def test_the_types_are_typescript(tmp_path: Path) -> None:
    """The TypeScript compiler from npm accepts correct code and rejects incorrect code."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed (apt install npm)")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    run(npm, "install", "--no-audit", "--no-fund", "typescript@5", cwd=tmp_path)
    package = tmp_path / "node_modules/torchette"
    package.mkdir()
    for name in ("torchette.d.ts", "llm.d.ts"):
        shutil.copy(ROOT / "torchette/build/web" / name, package)
    (package / "package.json").write_text(json.dumps(web.PACKAGE_JSON))
    (tmp_path / "use.ts").write_text(TYPED)
    modern = ("--target", "es2022", "--lib", "es2022,dom", "--module", "nodenext")
    run("node", tmp_path / "node_modules/.bin/tsc", "--strict", "--noEmit", *modern, "use.ts", cwd=tmp_path)
