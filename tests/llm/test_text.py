# SPDX-License-Identifier: BSD-3-Clause
# In: tokenizers of each kind, streams of bytes, chat templates. Out: the bytes of tokens are those of `tokenizers`; streams emit
# complete characters and no part of a stop string; errors name unknown parts.

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.llm.double import Writer, session, tokenizer_json
from torchette.errors import FormatError, InputError
from torchette.llm.text import ChatTemplate, Tokenizer

tokenizers = pytest.importorskip("tokenizers")
TEXTS = [
    "The quick brown fox",
    "jumps over the lazy dog, twice.",
    "Größe naïve 日本語 🎉",
    "a  b\n\tc",
    "x" * 9,
]


def trained(kind: str) -> Any:
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if kind == "byte level":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    elif kind == "byte fallback":
        tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=500, special_tokens=["<unk>", *(f"<0x{i:02X}>" for i in range(256))], limit_alphabet=40
        )
    elif kind == "metaspace":
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>")
    else:
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.Whitespace(),
            decoders.WordPiece(cleanup=False),
        )
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"])
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    return tokenizer


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "metaspace", "word piece"])
def test_bytes_of_tokens_equal_those_of_tokenizers(kind):
    theirs = trained(kind)
    record = json.loads(theirs.to_str())
    if kind == "byte fallback":  # byte tokens are ordinary tokens, as in models with byte fallback
        record["added_tokens"] = [t for t in record["added_tokens"] if t["content"] == "<unk>"]
        theirs = tokenizers.Tokenizer.from_str(json.dumps(record))
    ours = Tokenizer(json.dumps(record).encode())
    table = ours.bytes_of(theirs.get_vocab_size() + 5)
    for text in [*TEXTS, "ß dog 日x"]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids
        joined = b"".join(table[i] for i in ids).decode()
        decoded = theirs.decode(ids)
        assert joined == decoded or (joined[:1] == " " and joined[1:] == decoded)
    assert table[-5:] == [b""] * 5


def test_answer_emits_complete_characters_and_no_part_of_a_stop_string():
    rng, decoder = random.Random(0), Writer("")
    llm_session = session(decoder)
    for _ in range(300):
        text = "".join(rng.choice("abé日🎉") for _ in range(rng.randrange(12)))
        stops = [
            "".join(rng.choice("abé") for _ in range(rng.randint(1, 4))) for _ in range(rng.randrange(3))
        ]
        decoder.text, shown = text.encode(), ""
        for piece in llm_session.generate("<assistant>", stop=stops):
            shown += piece.text
            assert "\ufffd" not in piece.text and text.startswith(shown)
        ends = [at for stop in stops if (at := text.find(stop)) >= 0]
        assert not any(stop in shown for stop in stops)
        # the stop string that ends first is found first, even if another one begins earlier
        assert shown == text if not ends else shown == text[: len(shown)] and len(shown) >= min(ends)


def test_invalid_utf8_becomes_u_fffd_and_does_not_end_the_answer():
    rng, decoder = random.Random(1), Writer("")
    llm_session = session(decoder)
    cases = [b"a\xffb\xe6\x97\xa5", b"\xe6\x97", *(rng.randbytes(rng.randrange(1, 20)) for _ in range(200))]
    for data in cases:
        decoder.text = data
        assert "".join(piece.text for piece in llm_session.generate("<assistant>")) == data.decode(
            "utf-8", "replace"
        )
    decoder.text = cases[0]
    assert [piece.text for piece in llm_session.generate("<assistant>")] == ["a", "\ufffd", "b", "", "", "日"]


def test_a_decoder_may_replace_a_pattern():
    record = json.loads(trained("metaspace").to_str())
    record["decoder"] = {
        "type": "Sequence",
        "decoders": [{"type": "Replace", "pattern": {"Regex": "[▁x]+"}, "content": " "}, {"type": "Fuse"}],
    }
    theirs, ours = tokenizers.Tokenizer.from_str(json.dumps(record)), Tokenizer(json.dumps(record).encode())
    table = ours.bytes_of(theirs.get_vocab_size())
    for text in TEXTS:
        ids = ours.encode(text)
        assert b"".join(table[i] for i in ids).decode() == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"5", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000, b'{"model": {"type": "NoSuch"}}',
        json.dumps({**json.loads(tokenizer_json()), "decoder": {"type": "CTC", "pad_token": "p", "word_delimiter_token": "|", "cleanup": True}}).encode(),
        tokenizer_json()[:-100],
    ],
    ids=lambda data: repr(data[:20]),
)  # fmt: skip
def test_invalid_and_unknown_tokenizers_are_named(data):
    with pytest.raises(FormatError) as caught:
        Tokenizer(data)
    assert caught.value.code == "unknown-tokenizer" and "tokenizer" in str(caught.value)


def test_half_a_surrogate_pair_is_named():
    with pytest.raises(InputError, match="half a surrogate pair at 1"):
        Tokenizer(tokenizer_json()).encode("a\ud800")


def test_templates_render_as_transformers_renders_them():
    template = """{{- bos_token }}
{%- if messages[0].role == "system" %}
    {{- "<sys>" + messages[0].content | trim }}
    {%- set messages = messages[1:] %}
{%- endif %}
{% for m in messages %}
    {% if m.role == "tool" %}{% continue %}{% endif %}
{{ "<" + m.role + ">" }}{{ m | tojson }}
{% endfor %}
{% if add_generation_prompt %}{{ "<assistant>" }}{% endif %}"""
    messages = [
        {"role": r, "content": c}
        for r, c in (("system", " be brief "), ("user", "<é>"), ("tool", "x"), ("assistant", "hm"))
    ]
    ours = ChatTemplate(template, {"bos_token": "<s>", "eos_token": ""}).render(messages)
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    theirs = utilities.render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token=""
    )
    assert ours == theirs[0][0]


def test_templates_are_sandboxed_and_errors_are_named():
    message = [{"role": "user", "content": "hi"}]
    with pytest.raises(FormatError, match="cannot be read"):
        ChatTemplate("{% for %}", {})
    for source in (
        "{{ raise_exception('only one system') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(10 ** 9) | list }}",
        "{{ missing.attribute }}",
        "{{ 1 // 0 }}",
    ):
        with pytest.raises(InputError, match="refuses the messages"):
            ChatTemplate(source, {}).render(message)
    template = ChatTemplate("x", {})
    for messages in ([], "hi", [5], [{"role": "user"}], [{"role": "user", "content": 5}], [None]):
        with pytest.raises(InputError, match="messages"):
            template.render(messages)
