# SPDX-License-Identifier: BSD-3-Clause
# Third-party programs that import executorch run unchanged on Torchette after one call.

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

START = """
from tests.models.zoo import declare_torchvision_operators
declare_torchvision_operators()
from torchette.compat import alias_executorch
alias_executorch()
import sys, torch
torch.manual_seed(0)
"""

# No file of ExecuTorch was loaded.
END = """
peer = [m.__file__ for m in list(sys.modules.values()) if "/site-packages/executorch/" in (getattr(m, "__file__", None) or "")]
assert not peer, peer
import executorch, torchette
assert executorch is torchette
"""

MODEL = """
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=64, max_position_embeddings=64)
model = LlamaForCausalLM(config).eval()
ids = torch.tensor([[1, 5, 9, 3]])
"""

EXPORTER = f"""{START}{MODEL}
from transformers.exporters.exporter_executorch import ExecutorchConfig, ExecutorchExporter
def inputs(ids):
    return {{"input_ids": ids, "attention_mask": torch.ones_like(ids)}}
exported = ExecutorchExporter().export(model, inputs(ids), config=ExecutorchConfig(backend="xnnpack", dynamic=True))
for given in inputs(ids), inputs(torch.tensor([[1, 5, 9, 3, 7, 2, 4]])):
    with torch.no_grad():
        expected = model(**given).logits
    torch.testing.assert_close(exported(**given).logits, expected, rtol=1e-4, atol=1e-5)
exported.save_pretrained(sys.argv[1])
from executorch.runtime import Runtime
program = Runtime.get().load_program(sys.argv[1] + "/model.pte")
assert set(program.metadata("forward").backend_names) == {{"XnnpackBackend"}}
{END}"""

DECODER = f"""{START}{MODEL}
from transformers.generation.configuration_utils import GenerationConfig
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache, convert_and_export_with_cache
settings = dict(use_cache=True, cache_implementation="static", cache_config=dict(batch_size=1, max_cache_len=16))
model.generation_config = GenerationConfig(**settings)
with torch.no_grad():
    expected = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)[0].tolist()
exported = convert_and_export_with_cache(model, example_input_ids=ids[:, :1], example_cache_position=torch.tensor([0]))
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
program = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
module = _load_for_executorch_from_buffer(program.buffer)
tokens = ids[0].tolist()
for position in range(8):
    step = (torch.tensor([[tokens[position]]]), torch.tensor([position]))
    logits = module.forward(step)[0]
    if position + 1 == len(tokens):
        tokens.append(int(logits[0, -1].argmax()))
assert tokens == expected, (tokens, expected)
{END}"""

QUANTIZER = f"""{START}
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
model, x = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval(), torch.randn(2, 16)
quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
prepared(x)
quantized = convert_pt2e(prepared)
edge = to_edge_transform_and_lower(torch.export.export(quantized, (x,)), partitioner=[XnnpackPartitioner()])
module = _load_for_executorch_from_buffer(edge.to_executorch().buffer)
torch.testing.assert_close(module(x)[0], quantized(x), rtol=0, atol=0.02)
{END}"""


# Both export a network and run the file. Attention uses torch's operator, or ExecuTorch's operators with caches.
OPTIMUM = f"""{START}
import os, transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
os.chdir(sys.argv[1])
config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=128)
model = LlamaForCausalLM(config).eval()
model.save_pretrained("llama")
with torch.no_grad():
    expected = model.generate(torch.tensor([[1, 2, 3]]), do_sample=False, max_new_tokens=17, eos_token_id=None, pad_token_id=0)
from optimum.executorch import ExecuTorchModelForCausalLM
for how in {{}}, {{"attn_implementation": "custom_sdpa", "use_custom_kv_cache": True}}:
    exported = ExecuTorchModelForCausalLM.from_pretrained("llama", export=True, recipe="xnnpack", task="text-generation", **how)
    found = exported.generate([1, 2, 3], max_seq_len=20)
    assert found == expected[0, 3:].tolist(), (how, found, expected)
{END}"""

ULTRALYTICS = f"""{START}
import os
os.chdir(sys.argv[1])
os.environ["YOLO_CONFIG_DIR"] = sys.argv[1]
from ultralytics import YOLO
from ultralytics.nn.autobackend import AutoBackend
yolo = YOLO("yolo11n.yaml")
folder = yolo.export(format="executorch", imgsz=160)
image = torch.rand(1, 3, 160, 160)
with torch.no_grad():
    expected = yolo.model.float().eval()(image)[0]  # without the feature maps of the layers
torch.testing.assert_close(AutoBackend(folder)(image), expected, rtol=1e-3, atol=1e-3)
{END}"""


def run(script: str, *arguments: str, path: Path | None = None) -> None:
    """Runs a script with the packages in `path` before those of the environment."""
    variables = {"PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])} if path else {}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments], env={**os.environ, **variables},
        capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def installed(packages: str) -> Path:
    """Installs packages into a folder, because they would change others in the environment."""
    requirements = packages.split()
    name = hashlib.sha256(packages.encode()).hexdigest()[:12]
    folder = Path(os.environ["TORCHETTE_CACHE"]) / "clients" / name
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", f"{folder}.part"]
        done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(f"{folder}.part", ignore_errors=True)
            pytest.skip(f"not to be installed here: {done.stderr[-300:]}")
        Path(f"{folder}.part").rename(folder)
    return folder


@pytest.mark.slow
def test_transformers_exporter(tmp_path: Path) -> None:
    pytest.importorskip("transformers.exporters")
    run(EXPORTER, str(tmp_path))


@pytest.mark.gate
def test_transformers_decoder_with_cache() -> None:
    pytest.importorskip("transformers")
    run(DECODER)


def test_torchao_quantizer() -> None:
    pytest.importorskip("torchao")
    run(QUANTIZER)


@pytest.mark.slow
def test_optimum(tmp_path: Path) -> None:
    """Requires a specific transformers release, with its dependencies."""
    path = installed(
        "optimum-executorch==1.1.0 optimum==2.3.0 transformers==5.0.0rc1 tokenizers==0.22.2 huggingface-hub==1.2.4 "
        "pytorch-tokenizers tabulate accelerate psutil packaging httpx httpcore h11 anyio sniffio typer-slim hf-xet "
        "sentencepiece tiktoken requests urllib3 charset-normalizer shellingham"
    )
    run(OPTIMUM, str(tmp_path), path=path)


@pytest.mark.slow
def test_ultralytics(tmp_path: Path) -> None:
    path = installed(
        "ultralytics==8.4.190 ultralytics-thop opencv-python-headless matplotlib scipy psutil polars polars-runtime-32 "
        "cycler kiwisolver pyparsing fonttools contourpy python-dateutil six requests urllib3 charset-normalizer pyyaml "
        "packaging pillow"
    )
    run(ULTRALYTICS, str(tmp_path), path=path)


OPENAI = (
    "annotated_types==0.8.0 anyio==4.16.0 h11==0.16.0 httpcore2==2.16.2 httpx2==2.16.2 "
    "idna==3.20 jiter==0.19.0 openai==3.57.0 pydantic==2.14.4 pydantic_core==2.50.5 "
    "sniffio==1.3.1 truststore==0.10.5 typing_extensions==4.16.0 typing_inspection==0.4.5"
)
SERVED = """import sys, pytest
assert pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "tests/llm/serve/test_serve.py", "-k", "openais_own_client"]) == 0
import openai
"""


@pytest.mark.slow
def test_openai_client_with_server() -> None:
    """Runs the test of tests/llm/serve/test_serve.py that is skipped without the package."""
    run(SERVED, path=installed(OPENAI))
