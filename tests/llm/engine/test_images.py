# SPDX-License-Identifier: BSD-3-Clause
# In: small random image-text models of transformers. Out: a session generates the tokens of the model.
"""Image-text models."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.llm.image_models import IMAGE, asked, build
from tests.models import zoo
from tests.sweep import sweep
from torchette.errors import InputError
from torchette.format import pte

_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")

llm = pytest.importorskip("torchette.llm")

COUNT = 64


def expected(model: Any, inputs: dict[str, Any], count: int) -> list[int]:
    tokens = model.generate(**inputs, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return tokens[0].tolist()[-count:]


@pytest.mark.parametrize(
    "name",
    sweep(
        ["smolvlm", "idefics3", "llava", "gemma3", "lfm2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"], "qwen3_5"
    ),
)
def test_answers_equal_those_of_the_model(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("torchette.llm.exporting.encoders._DEFAULT_PATCHES", 16)
    model = build(name)
    session = llm.Session(llm.export(model, max_context=200, max_prefill=9 if name == "gemma3" else 5))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    prompt = [1, 5, 17, IMAGE, 3, IMAGE, 42, 7]
    options = {"max_tokens": COUNT, "temperature": 0, "ignore_end": True}
    rows = []
    for turned in (images, images.flip(0)):
        inputs = asked(model, prompt, turned)
        answer = session.generate(prompt, images=list(turned.numpy()), **options).run()
        assert answer.tokens == expected(model, inputs, COUNT)
        with torch.no_grad():
            rows.append(model(**inputs).logits[0, -1])
        (piece,) = session.generate(
            prompt, images=list(turned.numpy()), max_tokens=1, ignore_end=True, logprobs=101
        )
        likely = rows[-1].log_softmax(0)
        torch.testing.assert_close(
            torch.tensor([log for _, log in piece.top]),
            likely[[token for token, _ in piece.top]],
            rtol=1e-4,
            atol=1e-4,
        )
    assert answer.statistics.reused_tokens == (
        0 if name in ("lfm2_vl", "qwen3_5") else 3
    )  # a recurrent state is computed again
    assert not torch.allclose(*rows, atol=0.1)
    session.save(tmp_path / "state")
    loaded = session.new()
    loaded.load(tmp_path / "state")
    for one in (session.fork(), loaded):  # the state contains the rotary positions after images
        again = one.generate(prompt, images=list(turned.numpy()), **options).run()
        assert again.tokens == answer.tokens
    if name == "gemma3":  # without bidirectional attention within an image, the logits differ
        with torch.no_grad():
            causal = model(**{**inputs, "token_type_ids": torch.zeros_like(inputs["input_ids"])}).logits[
                0, -1
            ]
        assert not torch.allclose(causal, rows[1], atol=0.01)
    say = session.generate([1, 5, 17, 9], **options).run().tokens
    assert say == expected(model, {"input_ids": torch.tensor([[1, 5, 17, 9]])}, COUNT)
    photo = np.random.default_rng(1).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    assert session.generate([1, IMAGE], images=[photo], **options).run().tokens != answer.tokens
    with pytest.raises(InputError, match="1 tokens of images for 2 images"):
        session.generate([1, IMAGE], images=list(images.numpy()))
    with pytest.raises(
        InputError, match=r"image 0 has the shape \[1, 3, 16, 16\], the model accepts \[1, 3, 32, 32\]"
    ):
        session.generate([1, IMAGE], images=[np.zeros((3, 16, 16), np.float32)])


def processor(name: str) -> Any:
    """Saves a processor in the form of the family, with a tokenizer of bytes."""
    hf = pytest.importorskip("tokenizers")
    pytest.importorskip("PIL")
    t = transformers
    names = {
        "gemma3": ["<image_soft_token>", "<start_of_image>", "<end_of_image>"],
        "idefics3": ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"],
        "llava": ["<image>"],
    }[name]
    letters = hf.pre_tokenizers.ByteLevel.alphabet()
    tokenizer = hf.Tokenizer(
        hf.models.BPE(vocab={c: i for i, c in enumerate(["<s>", "</s>", *sorted(letters)])}, merges=[])
    )
    tokenizer.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = hf.decoders.ByteLevel()
    tokenizer.add_special_tokens(names)
    kinds = dict(zip(("image_token", "boi_token", "eoi_token"), names)) if name == "gemma3" else {}
    fast = t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", extra_special_tokens=kinds)
    if name == "gemma3":
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

        images = Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
        return t.Gemma3Processor(image_processor=images, tokenizer=fast, image_seq_length=4)
    if name == "llava":
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
        more = {"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
        return t.LlavaProcessor(image_processor=images, tokenizer=fast, patch_size=8, **more)
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    images = Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size={"longest_edge": 32})
    return t.Idefics3Processor(image_processor=images, tokenizer=fast, image_seq_len=4)


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "llava"])
def test_processor_defines_the_tokens_around_an_image(tmp_path: Path, name: str) -> None:
    from torchette.llm.exporting.encoders import image_metadata

    hf_processor = processor(name)
    hf_processor.save_pretrained(tmp_path)
    token = hf_processor.tokenizer.convert_tokens_to_ids(
        "<image_soft_token>" if name == "gemma3" else "<image>"
    )
    facts = image_metadata(tmp_path, token)
    written = "<start_of_image>" if name == "gemma3" else "<image>"
    assert facts["image_placeholder"] == hf_processor.tokenizer.convert_tokens_to_ids(written)
    assert len(facts["image_mean"]) == 3
    text, image = f"a{written}b{written}", np.zeros((50, 60, 3), np.uint8)
    options = {} if name == "gemma3" or name == "llava" else {"do_image_splitting": False}
    expected = hf_processor(text=text, images=[image, image], **options)["input_ids"][0]
    prompt_tokens = hf_processor.tokenizer(text)["input_ids"]
    around = facts["image_prompt"]
    wrapped = [t for one in prompt_tokens for t in (around if one == facts["image_placeholder"] else [one])]
    rows = 16 if name == "llava" else 4
    assert [t for one in wrapped for t in [one] * (rows if one == token else 1)] == expected
    (tmp_path / "processor_config.json").write_text("{}")
    with pytest.warns(UserWarning, match="around an image in a prompt are unknown"):
        assert image_metadata(tmp_path, token) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image_metadata(tmp_path / "nothing", token) == {}


@pytest.mark.slow
def test_a_folder_becomes_a_conversation_about_images(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Compiles the folder and asks in Python and in the terminal: the image in the template becomes the processor's tokens."""
    import io
    import sys

    from PIL import Image

    from torchette import cli

    hf_processor, folder = processor("idefics3"), tmp_path / "model"
    config = build("idefics3").config
    config.text_config.vocab_size = len(hf_processor.tokenizer)
    config.image_token_id = hf_processor.tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    model = transformers.Idefics3ForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    hf_processor.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endfor %}"
    )
    assert (
        cli.main(["llm", "compile", str(folder), "-o", str(tmp_path / "model.pte"), "--max-context", "100"])
        == 0
    )
    assert "chat_template.jinja" in pte.load_file(tmp_path / "model.pte").named()
    photo = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    session = llm.Session(tmp_path / "model.pte")
    messages = [
        {"role": "user", "content": [{"type": "image", "image": photo}, {"type": "text", "text": "hi"}]}
    ]
    answer = session.chat(messages, max_tokens=24, ignore_end=True).run()
    inputs = hf_processor(text="<image>hi", images=[photo], do_image_splitting=False, return_tensors="pt")
    assert answer.statistics.prompt_tokens == inputs["input_ids"].shape[1]
    inputs = {key: inputs[key] for key in ("input_ids", "pixel_values")}
    assert answer.tokens == expected(model, inputs, 24)
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"hi\n/reset\n/image {tmp_path / 'photo.png'}\nhi\n"))
    options = ["--image", str(tmp_path / "photo.png"), "--max-tokens", "24", "--temperature", "0"]
    assert cli.main(["chat", str(tmp_path / "model.pte"), *options]) == 0
    text = session.chat(messages, max_tokens=24).run().text
    assert capsys.readouterr().out == f"{text}\n" * 2
