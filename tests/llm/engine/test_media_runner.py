# SPDX-License-Identifier: BSD-3-Clause
# TextLLMRunner on programs that encode a text, audio or images, and on programs with adapters. Its tokens are those of `Session`
# on the same small random models.

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.building import BUILD, built
from tests.llm.engine.test_runner import converse
from tests.models import zoo
from torchette.errors import InputError

torch = pytest.importorskip("torch")
_LIBRARY = zoo.declare_torchvision_operators()
pytest.importorskip("transformers")
hf = pytest.importorskip("tokenizers")
llm = pytest.importorskip("torchette.llm")

CONTEXT, COUNT = 64, 12
OPTIONS = {"max_tokens": COUNT, "temperature": 0, "ignore_end": True}
GIVEN = f"new={COUNT}\tignore_eos=1"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer for models of 101 tokens: w5 is token 5."""
    tokenizer = hf.Tokenizer(hf.models.WordLevel({f"w{i}": i for i in range(101)}, unk_token="w0"))
    tokenizer.pre_tokenizer = hf.pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def text(*tokens: int) -> str:
    return " ".join(f"w{token}" for token in tokens)


def answers(session: Any, prompt: list[int], **media: Any) -> list[int]:
    return session.generate(prompt, **media, **OPTIONS).run().tokens


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.llm.exporting.test_encoders import build

    program = llm.export(build("t5"), max_context=CONTEXT, max_prefill=8)
    return program.save(tmp_path_factory.mktemp("reader") / "model.pte")


def test_text_encoder_reads_the_complete_text(reader: Path, words: Path, tmp_path: Path) -> None:
    session = llm.Session(reader)
    first, second = [5, 6, 7, 8, 9], list(range(20, 33))
    expected = [answers(session, one) for one in (first, second, first)]
    lines_of_runner = converse(
        reader,
        f"generate\t{text(*first)}\t{GIVEN}",
        "fork",
        f"generate\t{text(*second)}\t{GIVEN}",
        f"save\t{tmp_path / 'state'}",
        "join",
        "rewind\t1",
        f"generate\t\t{GIVEN}",  # of the parent, which has another text
        f"load\t{tmp_path / 'state'}",
        "rewind\t1",
        f"generate\t\t{GIVEN}",
        f"generate\t{text(*range(65))}\t{GIVEN}",
        f"image\t{words}\t1\t1",
        "reset",
        f"generate\t\t{GIVEN}",
        tokenizer=words,
    )
    assert [lines_of_runner[i].tokens[-COUNT:] for i in (0, 2, 6, 9)] == [expected[i] for i in (0, 1, 2, 1)]
    assert [lines_of_runner[i].error for i in (10, 11, 13)] == [
        "OutOfResources",
        "InvalidArgument",
        "InvalidArgument",
    ]
    assert lines_of_runner[10].tokens == lines_of_runner[9].tokens, "nothing is lost"
    # the same file in Python, and Python's here
    session.load(tmp_path / "state")
    assert answers(session, second) == expected[1]
    session.generate(first, **OPTIONS).run()
    session.save(tmp_path / "python")
    lines_of_runner = converse(
        reader, f"load\t{tmp_path / 'python'}", "rewind\t1", f"generate\t\t{GIVEN}", tokenizer=words
    )
    assert lines_of_runner[2].tokens[-COUNT:] == expected[0]


@pytest.mark.safety
def test_a_reader_under_sanitizers(reader: Path, words: Path, tmp_path: Path) -> None:
    say, state = f"generate\t{text(5, 6, 7)}\t{GIVEN}", tmp_path / "state"
    lines = (
        say,
        f"save\t{state}",
        "fork",
        f"generate\t{text(9)}\t{GIVEN}",
        f"load\t{state}",
        "rewind\t1",
        f"generate\t\t{GIVEN}",
    )
    lines_of_runner = converse(reader, *lines, "samples\t" + str(words), tokenizer=words, tree="asan")
    assert [line.error for line in lines_of_runner] == ["Ok"] * 7 + ["InvalidArgument"]
    assert lines_of_runner[6].tokens == lines_of_runner[0].tokens != lines_of_runner[3].tokens


def test_sound(words: Path, tmp_path: Path) -> None:
    from tests.llm.exporting.test_encoders import build

    model = build("whisper")
    path = llm.export(model, max_context=CONTEXT, max_prefill=8).save(tmp_path / "model.pte")
    session = llm.Session(path)
    rng = np.random.default_rng(0)
    features, samples = (
        rng.normal(size=(1, 16, 100)).astype(np.float32),
        rng.normal(size=9000).astype(np.float32) / 4,
    )
    features.tofile(tmp_path / "features")
    samples.tofile(tmp_path / "samples")
    heard = f"sound\t{tmp_path / 'features'}\t16\t100"
    lines_of_runner = converse(
        path,
        heard,
        f"generate\t\t{GIVEN}",
        f"samples\t{tmp_path / 'samples'}",
        f"generate\t{text(7, 8)}\t{GIVEN}",
        f"sound\t{tmp_path / 'features'}\t10\t160",
        heard,
        f"generate\t\t{GIVEN}",
        tokenizer=words,
    )
    expected = answers(session, [], audio=features)
    assert lines_of_runner[1].tokens[-COUNT:] == lines_of_runner[6].tokens[-COUNT:] == expected
    assert lines_of_runner[3].tokens[-COUNT:] == answers(session, [3, 7, 8], audio=samples) != expected
    assert lines_of_runner[4].error == "InvalidArgument"
    # audio that is longer than the encoder reads is refused, not cut
    np.zeros(2 * 100 * 160, np.float32).tofile(tmp_path / "long")
    (long,) = converse(path, f"samples\t{tmp_path / 'long'}", tokenizer=words)
    assert long.error == "InvalidArgument"
    with pytest.raises(InputError, match=r"audio has 2\.0 s, the model accepts at most 1\.0 s; split it"):
        session.generate([], audio=np.zeros(2 * 100 * 160, np.float32))

    # ExecuTorch's class for speech recognition
    line = f"transcribe\t{tmp_path / 'features'}\t16\t100\t{COUNT}"
    complete, ended = converse(path, f"{line}\t-1", f"{line}\t{expected[2]}", tokenizer=words)
    assert complete.answer == " ".join(map(str, expected)) + " " + text(*expected)
    first = expected[: expected.index(expected[2]) + 1]
    assert ended.answer == " ".join(map(str, first)) + " " + text(*first[:-1])


@pytest.mark.parametrize("name", ["smolvlm", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_images(name: str, words: Path, tmp_path: Path) -> None:
    from tests.llm.image_models import IMAGE, build

    path = llm.export(build(name), max_context=CONTEXT, max_prefill=9).save(tmp_path / "model.pte")
    session = llm.Session(path)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 3, 32, 32)).astype(np.float32)
    photo = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
    for i, image in enumerate(images):
        image.tofile(tmp_path / f"{i}")
    np.ascontiguousarray(photo.transpose(2, 0, 1)).tofile(tmp_path / "photo")
    first, second = (f"pixels\t{tmp_path / str(i)}\t32\t32" for i in range(2))
    lines_of_runner = converse(
        path,
        f"prefill\t{text(1, 5, 17)}", first, f"prefill\t{text(3)}", second, f"generate\t{text(42, 7)}\t{GIVEN}",
        f"save\t{tmp_path / 'state'}",
        "reset",
        f"prefill\t{text(1)}", f"image\t{tmp_path / 'photo'}\t30\t40", f"generate\t{text(9)}\t{GIVEN}",
        f"image\t{tmp_path / 'photo'}\t31\t40",
        f"pixels\t{tmp_path / '0'}\t16\t64",
        f"load\t{tmp_path / 'state'}",
        f"generate\t{text(4)}\t{GIVEN}",
        tokenizer=words,
    )  # fmt: skip
    prompt = [1, 5, 17, IMAGE, 3, IMAGE, 42, 7]
    expected = answers(session, prompt, images=list(images))
    assert [lines_of_runner[i].error for i in (5, 10, 11, 12)] == [
        "Ok",
        "InvalidArgument",
        "InvalidArgument",
        "Ok",
    ]
    assert lines_of_runner[4].tokens[-COUNT:] == expected
    assert lines_of_runner[9].tokens[-COUNT:] == answers(session, [1, IMAGE, 9], images=[photo])
    # the state contains the images; their ids are the same in Python
    more = answers(session, [*prompt, *expected, 4], images=list(images))
    assert lines_of_runner[13].tokens[-COUNT:] == more
    session.load(tmp_path / "state")
    assert list(session.tokens) == lines_of_runner[4].tokens
    again = session.generate([*prompt, *expected, 4], images=list(images), **OPTIONS).run()
    assert again.tokens == more and again.statistics.reused_tokens == len(lines_of_runner[4].tokens)


def test_adapters(words: Path, tmp_path: Path) -> None:
    """An adapter is replaced at run time; forks keep their adapter; a state belongs to one adapter."""
    from tests.llm import families
    from tests.llm.exporting.test_lora import adapter
    from torchette.llm.exporting import lora

    model = families.build("llama")
    pirate, _ = adapter(tmp_path / "pirate", model, 4, ("q_proj", "down_proj"), 1)
    poet, _ = adapter(tmp_path / "poet", model, 3, ("q_proj",), 2)
    path = llm.export(model, max_context=CONTEXT, max_prefill=8, lora=pirate).save(tmp_path / "model.pte")
    for name in ("pirate", "poet"):
        lora.write_adapter(path, tmp_path / name, tmp_path / f"{name}.ptd")
    expected = [answers(llm.Session(path, adapter=one), [5, 17, 3]) for one in (None, pirate, poet)]
    assert len({tuple(one) for one in expected}) == 3
    say, state = f"generate\t{text(5, 17, 3)}\t{GIVEN}", tmp_path / "state"
    lines_of_runner = converse(
        path,
        say,
        "fork",
        f"adapter\t{tmp_path / 'pirate.ptd'}",
        say,
        f"save\t{state}",
        f"adapter\t{tmp_path / 'poet.ptd'}",
        say,
        f"load\t{state}",
        f"adapter\t{path}",
        f"adapter\t{tmp_path / 'none.ptd'}",
        "reset",
        say,
        "adapter\t",
        say,
        "join",
        "rewind\t3",
        f"generate\t\t{GIVEN}",
        tokenizer=words,
    )
    assert [lines_of_runner[i].tokens[-COUNT:] for i in (0, 3, 6, 11, 13, 16)] == [
        expected[i] for i in (0, 1, 2, 2, 0, 0)
    ]
    assert [lines_of_runner[i].error for i in (7, 8, 9)] == [
        "InvalidExternalData",
        "InvalidExternalData",
        "AccessFailed",
    ]
    session = llm.Session(path, adapter=tmp_path / "pirate.ptd")
    session.load(state)
    assert list(session.tokens) == lines_of_runner[3].tokens
    plain = llm.export(model, max_context=CONTEXT).save(tmp_path / "plain.pte")
    assert converse(plain, f"adapter\t{tmp_path / 'poet.ptd'}", tokenizer=words)[0].error == "InvalidArgument"


def test_media_in_c(reader: Path, words: Path) -> None:
    """The C interface rejects media that the model does not accept, and continues."""
    built("torchette_llm_shared")
    library = ctypes.CDLL(str(BUILD / "libtorchette_llm.so"))
    handle = ctypes.c_void_p()
    assert library.torchette_llm_open(str(reader).encode(), str(words).encode(), ctypes.byref(handle)) == 0
    data = (ctypes.c_float * 12)()
    assert library.torchette_llm_prefill_image(handle, data, 2, 2, 3) == 0x12
    assert library.torchette_llm_prefill_normalized_image(handle, data, 2, -2, 3) == 0x12
    assert library.torchette_llm_prefill_audio(handle, data, 1, 1 << 30, 1 << 30) == 0x12
    assert library.torchette_llm_prefill_samples(handle, None, ctypes.c_size_t(3)) == 0x12
    assert library.torchette_llm_prefill(handle, b"w5 w6") == 0
    library.torchette_llm_free(handle)
