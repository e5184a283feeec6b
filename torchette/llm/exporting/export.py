# SPDX-License-Identifier: BSD-3-Clause
# In: a language model of transformers, its folder, or a GGUF file. Out: one program with its KV cache; the same file contains the
# tokenizer, the chat template and the generation defaults.
"""`export`: compiles a language model."""

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
from torchette.llm.exporting.decoder import CACHES, Decoder, fixed_rope
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
    image_metadata,
    max_rows,
)  # fmt: skip
from torchette.llm.exporting.generation_defaults import generation_json
from torchette.llm.exporting.grids import GridDecoder, GridEncoder, PatchEncoder
from torchette.llm.exporting.quantized import quantize_weights
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
    precision: str = "float32",
    progress: Callable[[str, str], None] | None = None,
) -> CompiledModel:
    """Compiles a language model of transformers.

    The program's `forward(tokens int64 [1, n], start_pos int64 [1])` returns the logits of the last token, float32
    [1, vocabulary]; n is 1 to `max_prefill`. The call stores keys and values at the positions from start_pos and reads those of
    earlier positions. A call with a smaller start_pos therefore discards the later tokens. If the model has a recurrent state, a
    call starts at position 0 or where the last call ended. The metadata has the names that
    ExecuTorch's runner reads. Configuration, tokenizer, chat template and generation defaults are named data.

    Args:
        model: the model, which is not changed; its folder; or a GGUF file. Q4_0, Q5_0, Q8_0 and Q6_K weights stay integers.
        quantize: the scheme of linear layers and the embedding table. "8da4w": 4-bit weights with one scale per 32 inputs,
            int8 inputs; "int8-dynamic": 8-bit weights with one scale per output channel, int8 inputs; "int4-weight-only" and
            "int8-weight-only": the same weights, float32 inputs; or an alias of `torchette.quantization.SCHEMES`. None: weights
            keep their type.
        max_context: length of the KV cache in tokens. Default: the length that the model was made for, at most 2048.
        max_prefill: maximum number of tokens of a call; raised to the tokens of an image if the model requires them in one call,
            and to 2 if the model has a recurrent state.
        full_logits: return the logits of all n tokens, [1, n, vocabulary], for speculative decoding.
        lora: the folder of a LoRA adapter of peft. The program accepts .ptd files of this adapter and of others for the same
            layers with at most its rank. `save` writes the .ptd file of this adapter under the folder's name.
        cache: the type of the KV cache: "float32", "float16", or "int8" with one scale per row of a head.
        tokenizer: a tokenizer.json, or a file of SentencePiece or tiktoken, which replaces the model's own tokenizer.
        ignore: fields of the model's generation_config.json to leave out, such as "num_beams". An unsupported field that changes
            the generated tokens is an error unless it is listed here.
        backend: as for `torchette.compile`; "portable" makes a file that ExecuTorch's runtime also runs.
        precision: "bfloat16" for linear layers that are not quantized; see `torchette.compile`.
        progress: called with (stage, step).

    Returns:
        The compiled program; `save` writes it.

    Raises:
        UnsupportedError: the attention, a part of a GGUF file, or a field of generation_config.json is not supported.
        ExportError: `torch.export` cannot capture the model; the message names the line of the model.
        FormatError: a GGUF file, the tokenizer or another file of the folder is damaged; the message names the file.
        ModelNotFoundError: the folder or file does not exist.
        InputError: the scheme is unknown, or a size is invalid.
        DelegationError: the backend is unknown.

    Example:
        >>> path = torchette.llm.export("smollm", "int8-weight-only", max_context=64).save("model.pte")
    """
    if quantize is not None:
        quantize = scheme_named(quantize, LLM_SCHEMES).name
    if cache not in CACHES:
        raise InputError(f"the KV cache has no type {cache!r}", hints=[f"cache types: {', '.join(CACHES)}"])
    check_backend(backend)
    step = progress or (lambda stage, name: None)
    tokenizer_data = None if tokenizer is None else named_data.tokenizer_file(tokenizer)
    if isinstance(model, (str, os.PathLike)):
        model, integers_of, named, image_info = _load_model(Path(model), tokenizer_data, step)
    else:
        integers_of, image_info = None, {}
        named = {} if tokenizer_data is None else {named_data.TOKENIZER: tokenizer_data}
    named = _with_configuration(model, named, ignore)
    max_context = max_context if max_context is not None else _default_context(model)
    if min(max_context, max_prefill) < 1:
        raise InputError(
            f"max_context and max_prefill must be at least 1, got {max_context} and {max_prefill}"
        )
    max_prefill = min(max_prefill, max_context)
    training, stack = model.training, contextlib.ExitStack()
    stack.enter_context(fixed_rope(model, max_context))
    try:
        methods, max_prefill = _methods(model.eval(), max_context, max_prefill, full_logits)
        decoder = next(part for part, *_ in methods.values() if isinstance(part, Decoder))
        step("check", type(model).__name__)
        decoder.portable = backend == "portable"
        decoder.check()
        decoder.store(cache)
        if quantize is not None or integers_of is not None:
            read_integers = integers_of or (lambda name: None)
            stored = quantize_weights(model, quantize, read_integers, lambda name: step("quantize", name))
            for part, *_ in methods.values():
                part.model = stored
        adapter_file = None
        if lora is not None:
            adapter = adapters.read(lora)
            stored, shapes = adapters.adapted(decoder.model, adapter)
            for part, *_ in methods.values():
                part.model = stored
            # torch.export prefixes the decoder's parameters with "model.".
            named[adapters.SHAPES] = json.dumps(
                {f"model.{name}": shape for name, shape in shapes.items()}
            ).encode()
            parameter_nodes = {f"p_model_{name}".replace(".", "_").lower() for name in shapes}
            adapter_file = lambda node: adapter.name if node.name.lower() in parameter_nodes else None  # noqa: E731
        return compile(
            methods,
            backend=backend,
            precision=precision,
            constant_methods=image_info
            | metadata(
                model, len(decoder.layers), max_prefill, max_context, named.get(named_data.PROCESSOR, b"{}")
            ),
            edge=EdgeCompileConfig(progress=progress),
            config=ExecutorchBackendConfig(
                **(_EXECUTORCH_PLANNING if decoder.portable else {}),
                named_data=named,
                emit_mutable_buffer_names=True,
                external_constants=adapter_file or False,
            ),
        )
    finally:
        stack.close()
        model.train(training)


# ExecuTorch's runner of language models provides memory for inputs, but not for outputs.
_EXECUTORCH_PLANNING: dict[str, Any] = {
    "memory_planning_pass": MemoryPlanningPass(alloc_graph_input=False),
    "dynamic_memory_planning_mode": DynamicMemoryPlanningMode.UPPER_BOUND,
}


def _default_context(model: PreTrainedModel) -> int:
    """Returns the maximum length of the model in tokens, at most 2048."""
    config = model.config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "max_target_positions", "n_positions")
    limits = (getattr(config, name, None) for name in names)
    return min(next((max_length for max_length in limits if max_length), 2048), 2048)


def _methods(
    model: PreTrainedModel, max_context: int, max_prefill: int, full_logits: bool
) -> tuple[dict[str, Any], int]:
    """Returns the program's methods as `compile` accepts them, and the maximum number of tokens of a call."""
    if not hasattr(model.config, "vision_config") and not model.config.is_encoder_decoder:
        decoder = Decoder(model, max_context, full_logits).eval()
        if decoder.is_recurrent:  # models have a separate path for calls of exactly one token
            max_prefill = min(max(max_prefill, 2), max_context)
        (tokens, start), token_shapes = _step(max_prefill)
        return {"forward": (decoder, (tokens, start), {}, (token_shapes, None))}, max_prefill
    kind = _vision_methods if hasattr(model.config, "vision_config") else _encoder_methods
    try:
        with torch.no_grad():
            return kind(model, max_context, max_prefill, full_logits)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, TorchetteError):
            raise
        has_text_model = type(model.config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        raise UnsupportedError(
            f"the structure of {type(model).__name__} is not supported: {error}",
            hints=[
                "for text only, pass transformers.AutoModelForCausalLM.from_pretrained(...) and tokenizer="
            ]
            if has_text_model
            else [],
        ) from error


def _step(max_prefill: int) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[int, Any] | None]:
    """Returns example tokens, their position, and the dynamic shapes of the tokens."""
    tokens = torch.zeros(1, min(3, max_prefill), dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return tokens, {1: Dim("n", min=1, max=max_prefill)} if max_prefill > 1 else None


def _vision_methods(
    model: PreTrainedModel, max_context: int, max_prefill: int, full_logits: bool
) -> tuple[dict[str, Any], int]:
    """Returns the methods of a model with image inputs."""
    if _image_token(model) is None:
        raise UnsupportedError(f"the configuration of {type(model).__name__} has no image token")
    image = example_image(model)
    vision, options = _vision_encoder(model, image), {}
    table = TokenEmbedding(model, getattr(vision, "num_deep", 0)).eval()
    kind: type[RowDecoder] = RowDecoder
    if "token_type_ids" in inspect.signature(inspect.unwrap(model.forward)).parameters:
        kind = BlockDecoder  # attention within an image is bidirectional
    if isinstance(vision, GridEncoder) and hasattr(model.model, "get_rope_index"):
        kind, options = GridDecoder, {"vision": vision, "image": image}
    if kind is not RowDecoder:  # one call contains the image
        max_prefill = min(max(max_prefill, vision(image).shape[1]), max_context)
    decoder = kind(model, max_context, full_logits, **options).eval()
    if decoder.is_recurrent:
        max_prefill = min(max(max_prefill, 2), max_context)
    (tokens, start), token_shapes = _step(max_prefill)
    example_inputs: tuple[Any, ...] = table(tokens), start
    sizes: tuple[Any, ...] = token_shapes, None
    if kind is not RowDecoder:
        blocks = torch.arange(tokens.shape[1]).unsqueeze(1).expand(-1, 2).contiguous()
        length = None if token_shapes is None else {0: token_shapes[1]}
        example_inputs, sizes = (*example_inputs, blocks), (*sizes, length)
    return {
        "vision_encoder": (vision, (image,), {}, None),
        "token_embedding": (table, (tokens,), {}, (token_shapes,)),
        "text_decoder": (decoder, example_inputs, {}, sizes),
    }, max_prefill


def _vision_encoder(model: PreTrainedModel, image: torch.Tensor) -> VisionEncoder:
    """Returns the encoder for the arguments of the model's method for images of this size."""
    parameters = inspect.signature(inspect.unwrap(model.get_image_features)).parameters
    if "image_grid_thw" in parameters:
        return GridEncoder(model, image).eval()
    return (PatchEncoder if "spatial_shapes" in parameters else VisionEncoder)(model).eval()


def _encoder_methods(
    model: PreTrainedModel, max_context: int, max_prefill: int, full_logits: bool
) -> tuple[dict[str, Any], int]:
    """Returns the methods of a model with an encoder."""
    (tokens, start), token_shapes = _step(max_prefill)
    encoder = Encoder(model).eval()
    inputs, length, max_length = example_input(model, max_context)
    encoded = encoder(inputs)
    rows = None if length is None else {2: Dim("rows", min=1, max=max_rows(encoder, inputs, max_length))}
    decoder = CrossDecoder(model, max_context, full_logits, inputs=inputs, encoded=encoded).eval()
    return {
        "encoder": (encoder, (inputs,), {}, None if length is None else ({1: length},)),
        "text_decoder": (decoder, (tokens, encoded, start), {}, (token_shapes, rows, None)),
    }, max_prefill


def _image_token(model: PreTrainedModel) -> int | None:
    """Returns the token that marks a row of an image in a prompt, or None if the model accepts no images."""
    token = getattr(model.config, "image_token_id", None)
    return getattr(model.config, "image_token_index", None) if token is None else token


def _load_model(
    path: Path, tokenizer: bytes | None, step: Callable[[str, str], None]
) -> tuple[Any, Callable[[str], Any] | None, dict[str, bytes], dict[str, Any]]:
    """Reads a folder or a GGUF file.

    Returns:
        The model, a function that returns a layer's integers (None if the weights are floats), the named data, and the metadata
        of the image processor.
    """
    step("load", path.name)
    if path.is_file():
        return *gguf.load(path, tokenizer), {}
    model, integers_of, named = _load_folder(path, tokenizer)
    image = _image_token(model)
    return model, integers_of, named, {} if image is None else image_metadata(path, image)


def _load_folder(
    folder: Path, tokenizer: bytes | None
) -> tuple[Any, Callable[[str], Any] | None, dict[str, bytes]]:
    """Reads a folder; returns the model in float32, a function that returns a layer's integers or None, and the named data."""
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"{folder} is neither a folder with a config.json nor a file",
            hints=["pass the folder that model.save_pretrained wrote, or a GGUF file"],
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        kind: Any = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
        if not getattr(kind, "can_generate", bool)():
            kind = AutoModelForCausalLM
        load_options: dict[str, Any] = {}
        integers_of = None
        load_path: Path | None = folder
        if settings := getattr(config, "quantization_config", None):
            load_options["state_dict"], integers_of = checkpoints.read(folder, settings)
            load_options["config"], load_path = config, None
            del config.quantization_config
            if (folder / "generation_config.json").is_file():
                load_options["generation_config"] = GenerationConfig.from_pretrained(
                    folder, local_files_only=True
                )
        with _without_progress_bars():
            model, loading_info = kind.from_pretrained(
                load_path,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                **load_options,
            )
    except ImportError as error:  # some models require a further package
        raise missing_package("transformers", f"loading {folder}", error) from error
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"transformers cannot load {folder} as a language model: {error}") from error
    if missing := sorted(loading_info["missing_keys"]):
        raise FormatError(f"{folder} has no weights for {len(missing)} parameters: {', '.join(missing[:3])}")
    return model, integers_of, named_data.of_folder(folder, config.model_type, tokenizer)


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Hides the progress bars of transformers; `export` reports its progress through `progress`."""
    was_enabled = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            transformers.utils.logging.enable_progress_bar()


def metadata(
    model: PreTrainedModel, layers: int, max_prefill: int, max_context: int, processor: bytes = b"{}"
) -> dict[str, Any]:
    """Returns the metadata of a program: the names that ExecuTorch's runner reads, and the normalization of images.

    Args:
        layers: number of layers with a KV cache.
        processor: the JSON text of preprocessor_config.json.
    """
    image_info = json.loads(processor)
    config, generation = model.config.get_text_config(decoder=True), getattr(model, "generation_config", None)

    def token(name: str) -> Any:
        token_id = getattr(generation, name, None)
        return getattr(config, name, None) if token_id is None else token_id

    end = token("eos_token_id")
    begin = token("bos_token_id")
    first = token("decoder_start_token_id") if model.config.is_encoder_decoder else None
    return {
        **({} if first is None else {"decoder_start_token_id": first}),
        **({"audio_step": list(audio_step(model))} if model.main_input_name == "input_values" else {}),
        **{
            key: image_info[key] for key in ("image_mean", "image_std") if len(image_info.get(key) or ()) == 3
        },
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
    """Adds the model's configuration and its generation defaults to the named data."""
    data = {"config.json": model.config.to_json_string().encode(), **named}
    if (generation := getattr(model, "generation_config", None)) is not None:
        # The file may have fields that GenerationConfig does not have, such as the fields of Whisper.
        defaults = json.loads(data.get("generation_config.json", b"{}"))
        data["generation_config.json"] = generation_json({**defaults, **generation.to_diff_dict()}, ignored)
    return data
