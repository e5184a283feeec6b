# SPDX-License-Identifier: BSD-3-Clause
# In: a causal language model of transformers, or its folder. Out: one program with its caches, and in the same file what is
# needed to talk to it: tokenizer, chat template, defaults of generation.
"""`torchette.llm.export`."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.export import Dim
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from torchette._compile import CompiledModel, check_backend, compile
from torchette.errors import FormatError, InputError, ModelNotFoundError, TorchetteError, UnsupportedError
from torchette.exir.config import DynamicMemoryPlanningMode, EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.llm.exporting import checkpoints, gguf, named_data
from torchette.llm.exporting import lora as adapters
from torchette.llm.exporting.decoder import CACHES, Decoder, settled
from torchette.llm.exporting.encoders import (
    BlockDecoder,
    CrossDecoder,
    Encoder,
    RowDecoder,
    TokenEmbedding,
    VisionEncoder,
    audio_step,
    example_image,
    example_input,
    image_facts,
    most_rows,
)  # fmt: skip
from torchette.llm.exporting.generation_defaults import generation_json
from torchette.llm.exporting.quantized import store_whole
from torchette.packages import missing_package
from torchette.quantization import LLM_SCHEMES, scheme_named


def export(
    model: PreTrainedModel,
    quantize: str | None = None,
    *,
    max_context: int | None = None,
    max_prefill: int = 128,
    full_logits: bool = False,
    lora: str | os.PathLike[str] | None = None,
    cache: str = "float32",
    tokenizer: str | os.PathLike[str] | None = None,
    ignore: Collection[str] = (),
    backend: Any = "auto",
    progress: Callable[[str, str], None] | None = None,
) -> CompiledModel:
    """Compiles a causal language model of transformers.

    The program's `forward(tokens int64 [1, n], start_pos int64 [1])` returns the logits of the last token, float32
    [1, vocabulary]; n is 1 to `max_prefill`. It stores keys and values at the positions from start_pos and reads those before,
    so a smaller start_pos goes back. Its metadata has the names of ExecuTorch's runner; configuration, tokenizer, chat template
    and generation defaults are named data.

    Args:
        model: the model, which is not changed; its folder; or a GGUF file, of which Q4_0, Q5_0, Q8_0 and Q6_K stay integers.
        quantize: the scheme of linear layers; the embedding table has the same weights. "8da4w": 4-bit weights with a scale
            for 32 inputs, int8 inputs; "int8-dynamic": 8-bit weights with a scale for each output, int8 inputs;
            "int4-weight-only" and "int8-weight-only": the same weights, float32 inputs; or an alias of
            `torchette.quantization.SCHEMES`. None: weights as given.
        max_context: the tokens in the caches; by default the model's, at most 2048.
        max_prefill: the tokens of a call; more if an image needs them.
        full_logits: return the logits of all n tokens, [1, n, vocabulary], for speculative decoding.
        lora: the folder of a LoRA adapter of peft. The program accepts it, and others for the same layers of at most its
            rank, as .ptd files; `save` writes this one by the folder's name.
        cache: the type of keys and values: "float32", "float16", or "int8" with a scale for each row of a head.
        tokenizer: a tokenizer.json, or a file of SentencePiece or tiktoken, which replaces the model's own tokenizer.
        ignore: fields of the model's generation_config.json to leave out, such as "num_beams". A field that changes the
            tokens of answers and is not supported is otherwise refused.
        backend: as for `torchette.compile`; "portable" makes a file for ExecuTorch's runtime, too.
        progress: called with (stage, step).

    Raises:
        UnsupportedError: its attention, a part of a GGUF file, or a field of generation_config.json is not supported.
        ExportError: `torch.export` cannot capture it; names the line of the model.
        FormatError: a GGUF file, the tokenizer or another file of the folder is damaged; names the file.
        ModelNotFoundError: there is no such folder or file.
        InputError: an unknown scheme, or invalid sizes.
        DelegationError: there is no such backend.
    """
    if quantize is not None:
        quantize = scheme_named(quantize, LLM_SCHEMES).name
    if cache not in CACHES:
        raise InputError(
            f"keys cannot be stored in {cache!r}", hints=[f"cache is one of: {', '.join(CACHES)}"]
        )
    check_backend(backend)
    step = progress or (lambda stage, name: None)
    own_tokenizer = None if tokenizer is None else named_data.tokenizer_file(tokenizer)
    if isinstance(model, (str, os.PathLike)):
        model, whole, named, seen = _opened(Path(model), own_tokenizer, step)
    else:
        whole, seen = None, {}
        named = {} if own_tokenizer is None else {named_data.TOKENIZER: own_tokenizer}
    named = _with_configuration(model, named, ignore)
    max_context = max_context if max_context is not None else _default_context(model)
    if min(max_context, max_prefill) < 1:
        raise InputError(f"max_context {max_context} and max_prefill {max_prefill} must be positive")
    max_prefill = min(max_prefill, max_context)
    training, stack = model.training, contextlib.ExitStack()
    stack.enter_context(settled(model, max_context))
    try:
        methods, max_prefill = _methods(model.eval(), max_context, max_prefill, full_logits)
        decoder = next(part for part, *_ in methods.values() if isinstance(part, Decoder))
        step("check", type(model).__name__)
        decoder.portable = backend == "portable"
        decoder.check()
        decoder.store(cache)
        if quantize is not None or whole is not None:
            given = whole or (lambda name: None)
            stored = store_whole(model, quantize, given, lambda name: step("quantize", name))
            for part, *_ in methods.values():
                part.model = stored
        own_file = None
        if lora is not None:
            adapter = adapters.read(lora)
            stored, shapes = adapters.adapted(decoder.model, adapter)
            for part, *_ in methods.values():
                part.model = stored
            # What the exporter calls parameters of the decoder's model.
            named[adapters.SHAPES] = json.dumps(
                {f"model.{name}": shape for name, shape in shapes.items()}
            ).encode()
            places = {f"p_model_{name}".replace(".", "_").lower() for name in shapes}
            own_file = lambda node: adapter.name if node.name.lower() in places else None  # noqa: E731
        return compile(
            methods,
            backend=backend,
            constant_methods=seen
            | metadata(
                model, len(decoder.layers), max_prefill, max_context, named.get(named_data.PROCESSOR, b"{}")
            ),
            edge=EdgeCompileConfig(progress=progress),
            config=ExecutorchBackendConfig(
                **(_PLANNED if decoder.portable else {}),
                named_data=named,
                emit_mutable_buffer_names=True,
                external_constants=own_file or False,
            ),
        )
    finally:
        stack.close()
        model.train(training)


# What ExecuTorch's runner of language models asks for: it gives no memory to results.
_PLANNED: dict[str, Any] = {
    "memory_planning_pass": MemoryPlanningPass(alloc_graph_input=False),
    "dynamic_memory_planning_mode": DynamicMemoryPlanningMode.UPPER_BOUND,
}


def _default_context(model: PreTrainedModel) -> int:
    """The positions that the model was made for, at most 2048."""
    config = model.config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "max_target_positions", "n_positions")
    made_for = (getattr(config, name, None) for name in names)
    return min(next((most for most in made_for if most), 2048), 2048)


def _methods(
    model: PreTrainedModel, max_context: int, max_prefill: int, full_logits: bool
) -> tuple[dict[str, Any], int]:
    """The program's methods as `compile` takes them, and how many tokens one call takes."""
    if not hasattr(model.config, "vision_config") and not model.config.is_encoder_decoder:
        (tokens, start), several = _step(max_prefill)
        decoder = Decoder(model, max_context, full_logits).eval()
        return {"forward": (decoder, (tokens, start), {}, (several, None))}, max_prefill
    kind = _seeing if hasattr(model.config, "vision_config") else _reading
    try:
        with torch.no_grad():
            return kind(model, max_context, max_prefill, full_logits)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, TorchetteError):
            raise
        raise UnsupportedError(f"{type(model).__name__} is not of a form that is known: {error}") from error


def _step(max_prefill: int) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[int, Any] | None]:
    """Example tokens and their position, and what of the tokens may change."""
    tokens = torch.zeros(1, min(3, max_prefill), dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return tokens, {1: Dim("n", min=1, max=max_prefill)} if max_prefill > 1 else None


def _seeing(
    model: PreTrainedModel, max_context: int, max_prefill: int, full_logits: bool
) -> tuple[dict[str, Any], int]:
    """Methods of a model that takes images."""
    if _image_token(model) is None:
        raise UnsupportedError(f"{type(model).__name__} does not say which token stands for an image")
    vision, table, image = VisionEncoder(model).eval(), TokenEmbedding(model).eval(), example_image(model)
    whole = "token_type_ids" in inspect.signature(inspect.unwrap(model.forward)).parameters
    together = vision(image).shape[1]
    if whole:  # an image's rows see each other, so they come in one step
        max_prefill = min(max(max_prefill, together), max_context)
    (tokens, start), several = _step(max_prefill)
    given: tuple[Any, ...] = table(tokens), start
    sizes: tuple[Any, ...] = several, None
    kind: type[RowDecoder] = RowDecoder
    if whole:
        blocks = torch.arange(tokens.shape[1]).unsqueeze(1).expand(-1, 2).contiguous()
        length = None if several is None else {0: several[1]}
        given, sizes, kind = (*given, blocks), (*sizes, length), BlockDecoder
    return {
        "vision_encoder": (vision, (image,), {}, None),
        "token_embedding": (table, (tokens,), {}, (several,)),
        "text_decoder": (kind(model, max_context, full_logits).eval(), given, {}, sizes),
    }, max_prefill


def _reading(
    model: PreTrainedModel, max_context: int, max_prefill: int, full_logits: bool
) -> tuple[dict[str, Any], int]:
    """Methods of a model with an encoder."""
    (tokens, start), several = _step(max_prefill)
    encoder = Encoder(model).eval()
    inputs, length, most = example_input(model, max_context)
    encoded = encoder(inputs)
    rows = None if length is None else {2: Dim("rows", min=1, max=most_rows(encoder, inputs, most))}
    decoder = CrossDecoder(model, max_context, full_logits, inputs=inputs, encoded=encoded).eval()
    return {
        "encoder": (encoder, (inputs,), {}, None if length is None else ({1: length},)),
        "text_decoder": (decoder, (tokens, encoded, start), {}, (several, rows, None)),
    }, max_prefill


def _image_token(model: PreTrainedModel) -> int | None:
    """What stands in a prompt for a row of an image."""
    found = getattr(model.config, "image_token_id", None)
    return getattr(model.config, "image_token_index", None) if found is None else found


def _opened(
    path: Path, tokenizer: bytes | None, step: Callable[[str, str], None]
) -> tuple[Any, Callable[[str], Any] | None, dict[str, bytes], dict[str, Any]]:
    """The model of a folder or a GGUF file; name of a layer -> its integers, if any; its files; metadata of its images."""
    step("load", path.name)
    if path.is_file():
        return *gguf.load(path, tokenizer), {}
    model, whole, named = _load(path, tokenizer)
    image = _image_token(model)
    return model, whole, named, {} if image is None else image_facts(path, image)


def _load(folder: Path, tokenizer: bytes | None) -> tuple[Any, Callable[[str], Any] | None, dict[str, bytes]]:
    """A folder's model in float32; name of a layer -> its integers, if any; its files."""
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"{folder} is no folder with a config.json, and no file",
            hints=["the folder of model.save_pretrained, or a GGUF file"],
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        kind: Any = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
        if not getattr(kind, "can_generate", bool)():
            kind = AutoModelForCausalLM
        more: dict[str, Any] = {}
        whole = None
        place: Path | None = folder
        if settings := getattr(config, "quantization_config", None):
            more["state_dict"], whole = checkpoints.read(folder, settings)
            more["config"], place = config, None
            del config.quantization_config
            if (folder / "generation_config.json").is_file():
                more["generation_config"] = GenerationConfig.from_pretrained(folder, local_files_only=True)
        with _without_progress_bars():
            model, said = kind.from_pretrained(
                place, dtype=torch.float32, local_files_only=True, output_loading_info=True, **more
            )
    except ImportError as error:  # of a package that this model alone needs
        raise missing_package("transformers", f"loading {folder}", error) from error
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"transformers cannot load {folder} as a language model: {error}") from error
    if missing := sorted(said["missing_keys"]):
        raise FormatError(f"{folder} has no weights for {', '.join(missing[:3])}, {len(missing)} in all")
    return model, whole, named_data.of_folder(folder, config.model_type, tokenizer)


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Hides the progress bars of transformers: `progress` has ours."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


def metadata(
    model: PreTrainedModel, layers: int, max_prefill: int, max_context: int, processor: bytes = b"{}"
) -> dict[str, Any]:
    """The metadata of a program, by the names of ExecuTorch's runner, and the range of images."""
    seen = json.loads(processor)
    config, generation = model.config.get_text_config(decoder=True), getattr(model, "generation_config", None)

    def token(name: str) -> Any:
        found = getattr(generation, name, None)
        return getattr(config, name, None) if found is None else found

    end = token("eos_token_id")
    begin = token("bos_token_id")
    first = token("decoder_start_token_id") if model.config.is_encoder_decoder else None
    return {
        **({} if first is None else {"decoder_start_token_id": first}),
        **({"audio_step": list(audio_step(model))} if model.main_input_name == "input_values" else {}),
        **{key: seen[key] for key in ("image_mean", "image_std") if len(seen.get(key) or ()) == 3},
        **({} if (image := _image_token(model)) is None else {"image_token_id": image}),
        "get_max_seq_len": max_prefill,
        "get_max_context_len": max_context,
        "get_vocab_size": config.vocab_size,
        "get_n_layers": layers,
        "get_bos_id": -1 if begin is None else begin,
        "get_eos_ids": [] if end is None else list(end) if isinstance(end, (list, tuple)) else [end],
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": True,
    }


def _with_configuration(
    model: PreTrainedModel, named: dict[str, bytes], ignored: Collection[str]
) -> dict[str, bytes]:
    """The named data with the configurations of the model and of generation."""
    found = {"config.json": model.config.to_json_string().encode(), **named}
    if (generation := getattr(model, "generation_config", None)) is not None:
        # the file may have fields that the class does not know, such as those of Whisper
        given = json.loads(found.get("generation_config.json", b"{}"))
        found["generation_config.json"] = generation_json({**given, **generation.to_diff_dict()}, ignored)
    return found
