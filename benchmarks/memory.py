# SPDX-License-Identifier: BSD-3-Clause
# The memory of a process that loads and calls a file: resident peak, anonymous and mapped pages, against the bytes of the file and
# of the tensors that are live at the actual sizes. Each case runs in a new process.
"""`./dev bench memory`: resident memory of language models by position, and of models with dynamic shapes by size."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.models import ROOT

FOLDER = ROOT / ".torchette" / "memory"
CONTEXT, PREFILL = 2048, 128
POSITIONS = (16, 256, 2000)
MAX_OVERHEAD = 1.05  # maximum ratio of resident memory to file and live bytes


class Case(NamedTuple):
    """A file, and the sizes of its calls: a number of tokens, or the shape of the input."""

    label: str
    file: str
    sizes: tuple[int, ...]


PLANS = ("symbolic", "upper-bound")
CASES = [
    *(Case(f"Llama, float32, {n} of {CONTEXT} tokens", "llama-float32.pte", (n,)) for n in POSITIONS),
    *(Case(f"Llama, 4-bit, {n} of {CONTEXT} tokens", "llama-4bit.pte", (n,)) for n in POSITIONS),
    *(Case(f"CNN, 64 of 2048 pixels, {plan}", f"image-{plan}.pte", (1, 3, 64, 64)) for plan in PLANS),
    *(Case(f"BERT, 16 of 512 tokens, {plan}", f"bert-{plan}.pte", (1, 16)) for plan in PLANS),
]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench memory", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="words of the labels of cases; default: all")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    from torchette.cli import doctor

    print(f"{doctor.cpu_name()}, {time.strftime('%Y-%m-%d')}; MB of 1,000,000 bytes\n")
    bar = f"of file + live ({MAX_OVERHEAD:g})"
    columns = ["", "file", "live", "peak", bar, "of file", "anonymous", "mapped", "after load"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for case in CASES:
        if not options.words or any(word in case.label for word in options.words):
            print(_row(case), flush=True)
    return 0


def _row(case: Case) -> str:
    path = FOLDER / case.file
    if not path.with_suffix(".json").exists():
        _run("convert", case.file)
    found = _run("run", str(path), *map(str, case.sizes))
    file = path.stat().st_size
    live = found["state"] + max(found["dynamic"], json.loads(path.with_suffix(".json").read_text())["live"])
    sizes = [file, live, found["peak"]]
    parts = [found[name] for name in ("anonymous", "mapped", "loaded")]
    ratios = [f"{found['peak'] / (file + live):.2f}", f"{found['peak'] / file:.2f}"]
    cells = [
        case.label,
        *(f"{size / 1e6:.1f}" for size in sizes),
        *ratios,
        *(f"{part / 1e6:.1f}" for part in parts),
    ]
    return f"| {' | '.join(cells)} |"


def _run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    lines = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


# --- A process that converts a model


def convert(name: str) -> dict[str, Any]:
    """Writes a file of CASES, and next to it as JSON the live bytes of one call at the actual sizes, without state."""
    from benchmarks.llm.model import prepare

    prepare()
    model, _, variant = name.removesuffix(".pte").partition("-")
    live = {"llama": _llama, "image": _image, "bert": _bert}[model](FOLDER / name, variant)
    (FOLDER / name).with_suffix(".json").write_text(json.dumps({"live": live}))
    return {"live": live}


def _llama(path: Path, variant: str) -> int:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.llm.model import SHAPE
    from torchette import llm

    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE | {"max_position_embeddings": CONTEXT}, dtype="float32")
    model = LlamaForCausalLM(config).eval()
    scheme, cache = (None, "float32") if variant == "float32" else ("8da4w", "float16")
    llm.export(model, scheme, max_context=CONTEXT, max_prefill=PREFILL, cache=cache).save(path)
    return 0  # the process reports the peak of its dynamic tensors


def _image(path: Path, variant: str) -> int:
    import torch

    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for channels, following in ((3, 64), (64, 128), (128, 256), (256, 512)):
        layers += [torch.nn.Conv2d(channels, following, 3, stride=2, padding=1), torch.nn.ReLU()]
        layers += [torch.nn.Conv2d(following, following, 3, padding=1), torch.nn.ReLU()]
    model = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 1000)
    )
    height, width = (16 * torch.export.Dim(f"_{name}", min=2, max=128) for name in "hw")
    return _compile(path, variant, model.eval(), torch.randn(1, 3, 64, 64), ({2: height, 3: width},))


def _bert(path: Path, variant: str) -> int:
    import torch
    from transformers import BertConfig, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shape = {
                "hidden_size": 384,
                "num_hidden_layers": 6,
                "num_attention_heads": 12,
                "intermediate_size": 1536,
            }
            self.bert = BertModel(BertConfig(**shape, vocab_size=1000), add_pooling_layer=False)

        def forward(self, tokens: torch.Tensor) -> Any:
            return self.bert(input_ids=tokens).last_hidden_state

    torch.manual_seed(0)
    tokens = torch.randint(0, 1000, (1, 16))
    return _compile(
        path, variant, Encoder().eval(), tokens, ({1: torch.export.Dim("tokens", min=2, max=512)},)
    )


def _compile(path: Path, variant: str, model: Any, example: Any, shapes: Any) -> int:
    import torchette
    from torchette.exir.config import DynamicMemoryPlanningMode, ExecutorchBackendConfig

    mode = (
        DynamicMemoryPlanningMode.UPPER_BOUND
        if variant == "upper-bound"
        else DynamicMemoryPlanningMode.SYMBOLIC
    )
    config = ExecutorchBackendConfig(dynamic_memory_planning_mode=mode)
    torchette.compile(model, (example,), dynamic_shapes=shapes, config=config).save(path)
    static = torchette.compile(model, (example,))
    outputs = static(example)
    size = sum(each.nbytes for each in (outputs if isinstance(outputs, tuple) else (outputs,)))
    return static.lower_bound_bytes + example.nbytes + size


# --- A process that measures


def _status() -> dict[str, int]:
    """Returns the fields of /proc/self/status in bytes."""
    found = re.findall(r"(VmHWM|RssAnon|RssFile):\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {name: 1024 * int(size) for name, size in found}


def _calls(sizes: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Returns the inputs of each call: an image, tokens, or tokens and positions up to a number of them."""
    import numpy as np

    random = np.random.default_rng(0)
    if len(sizes) == 4:
        yield (random.random(sizes, np.float32),)
    elif len(sizes) == 2:
        yield (random.integers(0, 1000, sizes),)
    else:
        for begin in range(0, sizes[0], PREFILL):
            count = min(PREFILL, sizes[0] - begin)
            yield random.integers(0, 1000, (1, count)), np.array([begin])


def measure(path: str, sizes: tuple[int, ...]) -> dict[str, int]:
    """Returns bytes above those after the imports, and the bytes of the state of the used positions."""
    from torchette.runtime import Runtime

    runtime, calls = Runtime.get(), list(_calls(sizes))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status()
    method = runtime.load_program(path).load_method("forward", threads=1)
    loaded = _status()
    for inputs in calls:
        method.execute(inputs)
    after = _status()
    state = sum(
        each.nbytes()
        for each in map(method.metadata.attribute_tensor_meta, range(method.metadata.num_attributes()))
    )
    return {
        "peak": after["VmHWM"] - before["RssAnon"] - before["RssFile"],
        "anonymous": after["RssAnon"] - before["RssAnon"],
        "mapped": after["RssFile"] - before["RssFile"],
        "loaded": sum(loaded[name] - before[name] for name in ("RssAnon", "RssFile")),
        "dynamic": method.dynamic_memory_peak,
        "state": state * sizes[0] // CONTEXT if len(sizes) == 1 else state,
    }


if __name__ == "__main__":
    verb, name, *rest = sys.argv[1:]
    found = convert(name) if verb == "convert" else measure(name, tuple(map(int, rest)))
    print(json.dumps(found))
