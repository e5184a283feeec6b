# SPDX-License-Identifier: BSD-3-Clause
# TextLLMRunner, its C interface and llm_runner on a small random Llama that torchette.llm exported. The tokens are those of
# transformers, for any division, end or rewind of a conversation.

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.building import BUILD, ROOT, built, run
from tests.models import zoo

torch = pytest.importorskip("torch")
_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("tokenizers")
llm = pytest.importorskip("torchette.llm")
from tests.llm.languages.c_api import ON_TOKEN, Bias, Config, Piece, Stats  # noqa: E402
from tests.llm.languages.java import compile_java  # noqa: E402
from torchette.llm.options import OPTIONS as TABLE  # noqa: E402

CONTEXT, CHUNK = 96, 8
PROMPT = "The house of the rising sun"


class Small(NamedTuple):
    model: Any
    tokenizer: Any
    path: Path
    folder: Path
    end: int  # a token that ends a text

    def expected(self, ids: list[int], count: int, **options) -> list[int]:
        """Returns the prompt and the greedy tokens of transformers after it."""
        options = {"eos_token_id": None, **options}
        with torch.no_grad():
            inputs = torch.tensor([ids])
            mask = torch.ones_like(inputs)
            outputs = self.model.generate(
                inputs, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0, **options
            )
        return outputs[0].tolist()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = hf.decoders.ByteLevel()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train([str(ROOT / "LICENSE")], trainer)  # a fixed text: README.md would change the tokens
    tokenizer.post_processor = hf.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=608,  # larger than the tokenizer's vocabulary
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    result = Small(model, tokenizer, folder / "model.pte", folder, -1)
    # the end token is a token that the model generates soon after the prompt
    result = result._replace(end=result.expected(tokenizer.encode(PROMPT).ids, 12)[-1])
    model.generation_config.eos_token_id = model.config.eos_token_id = [2, result.end]
    model.save_pretrained(folder)
    llm.export(folder, max_prefill=CHUNK).save(result.path)
    return result


class Said(NamedTuple):
    error: str
    tokens: list[int]
    answer: str
    reason: str
    pieces: int


def converse(path: Path, *lines: str, tree: str = "dev", tokenizer: Path | None = None) -> list[Said]:
    command = [built("torchette_converse", tree=tree), path, *([] if tokenizer is None else [tokenizer])]
    done = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    results = []
    for line in done.stdout.decode().splitlines():
        error, tokens, answer, reason, pieces = line.split("|")
        text = bytes.fromhex(answer).decode()
        results.append(Said(error, [int(t) for t in tokens.split()], text, reason, int(pieces)))
    assert len(results) == len(lines)
    return results


def test_tokens_are_those_of_transformers(small: Small) -> None:
    """The prompt has many chunks, and the answer ends with the context."""
    ids = small.tokenizer.encode(PROMPT).ids
    assert len(ids) > CHUNK
    (result,) = converse(small.path, f"generate\t{PROMPT}\tspecial=1\tignore_eos=1")
    expected = small.expected(ids, CONTEXT - len(ids) + 1)  # the last token does not enter the context
    assert (result.error, result.tokens, result.reason) == ("Ok", expected, "length")
    known = [token for token in expected[len(ids) :] if token < small.tokenizer.get_vocab_size()]
    assert result.answer == small.tokenizer.decode(known)
    # with and without num_bos
    plain = small.tokenizer.encode(PROMPT, add_special_tokens=False).ids
    bos, none = converse(small.path, f"generate\t{PROMPT}\tbos=1\tnew=5\tignore_eos=1", f"prefill\t{PROMPT}")
    assert bos.tokens == small.expected(ids, 5) and bos.reason == "length"
    assert none.tokens == bos.tokens + plain


def test_conversation_continues_and_rewinds(small: Small) -> None:
    first, second = (
        small.tokenizer.encode("One.").ids,
        small.tokenizer.encode(" Two", add_special_tokens=False).ids,
    )
    results = converse(
        small.path,
        "generate\tOne.\tspecial=1\tnew=7\tignore_eos=1",
        "generate\t Two\tnew=7\tignore_eos=1",
        f"rewind\t{len(first)}",
        "warmup\tsomething else",
        "generate\t\tnew=7\tignore_eos=1",
        "prefill\t Two",
        "generate\t\tnew=7\tignore_eos=1",
        "reset",
        "generate\tOne.\tspecial=1\tnew=7\tignore_eos=1\techo=1",
        "rewind\t1000",
    )
    once = small.expected(first, 7)
    twice = small.expected(once + second, 7)
    assert [line.error for line in results] == ["Ok"] * 9 + ["InvalidArgument"]
    assert [line.tokens for line in results] == [
        once,
        twice,
        first,
        first,
        once,
        once + second,
        twice,
        [],
        once,
        once,
    ]
    assert results[8].answer == "One." + results[0].answer


@pytest.mark.safety
def test_a_conversation_under_sanitizers(small: Small, tmp_path: Path) -> None:
    request = f"generate\t{PROMPT}\tspecial=1\tnew=20\tignore_eos=1\ttemperature=1\ttop_p=0.9\tstop=never"
    lines = (
        request,
        "rewind\t9",
        f"generate\t{PROMPT}\tcancel=2",
        f"generate\t{PROMPT * 20}",
        "reset",
        request,
    )
    results = converse(small.path, *lines, tree="asan")
    assert [line.error for line in results] == ["Ok", "Ok", "Ok", "OutOfResources", "Ok", "Ok"]
    assert results[0].tokens == results[5].tokens
    # states, drafts, grammars of schemas, slides, log-probabilities, forks
    state, schema = (
        tmp_path / "state",
        json.dumps({"schema": {"type": "array"}, "logprobs": 2, "temperature": 1}),
    )
    (tmp_path / "cut").write_bytes(b"torchette session 1\n" + bytes(8))
    steps = f"steps\t so\tnew=30\tjson={schema}"
    lines = (
        request, f"save\t{state}", steps, f"draft\t{small.path}\t3", f"load\t{state}", f"load\t{tmp_path / 'cut'}", steps, "drafted", "fork",
        f"{request}\tslide=1\tnew=150", "join", steps, "adapter\tnone",
    )  # fmt: skip
    results = converse(small.path, *lines, tree="asan")
    assert [line.error for line in results] == ["Ok"] * 5 + ["InvalidExternalData"] + ["Ok"] * 6 + [
        "InvalidArgument"
    ]
    assert results[4].tokens == results[0].tokens


def together(small: Small, folder: Path, tree: str) -> None:
    path = folder / "model.pte"
    path.write_bytes(small.path.read_bytes())
    options = "new=30\tignore_eos=1\tslide=1"
    schema = json.dumps({"schema": {"type": "array", "minItems": 5}})
    _, result, alone = converse(
        path, f"prefill\t{PROMPT}", "together\t so", f"generate\t so\t{options}\tjson={schema}", tree=tree
    )
    assert (result.error, result.reason) == ("Ok", "cancelled") and result.answer == alone.answer != ""
    states = [Path(f"{path}{i}").read_bytes() for i in range(2)]
    assert states[0] == states[1]


def test_forks_in_threads(small: Small, tmp_path: Path) -> None:
    together(small, tmp_path, "dev")


@pytest.mark.safety
def test_forks_in_threads_under_sanitizers(small: Small, tmp_path: Path) -> None:
    together(small, tmp_path, "tsan")


def test_ends_of_answers(small: Small) -> None:
    ids = small.tokenizer.encode(PROMPT).ids
    (complete,) = converse(small.path, f"generate\t{PROMPT}\tspecial=1\tnew=40\tignore_eos=1")
    stop = complete.answer[11:14]
    begin = complete.answer.index(stop)
    results = converse(
        small.path,
        f"generate\t{PROMPT}\tspecial=1\tnew=40\tignore_eos=1\tstop={stop}\tstop=\tstop=never at all",
        "reset",
        f"generate\t{PROMPT}\tspecial=1\tnew=40\tignore_eos=1\tcancel=3",
        "reset",
        f"generate\t{PROMPT}\tspecial=1\tnew=0",
        "reset",
        f"generate\t{PROMPT}\tspecial=1\tlen={len(ids) + 4}\tignore_eos=1",
        f"generate\t{PROMPT * 20}",
        "reset",
        "generate\t",
    )
    assert (results[0].answer, results[0].reason) == (complete.answer[:begin], "stop")
    assert results[0].tokens == complete.tokens[: len(results[0].tokens)] and len(results[0].tokens) < len(
        complete.tokens
    )
    assert (
        results[2].reason == "cancelled"
        and results[2].pieces == 3
        and complete.answer.startswith(results[2].answer)
    )
    assert (results[4].tokens, results[4].reason) == (ids, "length")
    assert results[6].tokens == small.expected(ids, 4)
    assert (results[7].error, results[7].tokens) == ("OutOfResources", results[6].tokens), "nothing is lost"
    assert results[9].error == "InvalidArgument"


def test_a_token_that_ends_a_text(small: Small) -> None:
    ids = small.tokenizer.encode(PROMPT).ids
    (result,) = converse(small.path, f"generate\t{PROMPT}\tspecial=1\tnew=40")
    assert (result.tokens, result.reason) == (small.expected(ids, 40, eos_token_id=small.end), "stop")
    assert len(ids) < len(result.tokens) <= len(ids) + 13


def test_sampling(small: Small) -> None:
    line = f"generate\t{PROMPT}\tspecial=1\tnew=20\tignore_eos=1\ttemperature=1.5"
    greedy = small.expected(small.tokenizer.encode(PROMPT).ids, 20)

    def of(options: str) -> list[int]:
        return converse(small.path, f"{line}\t{options}")[0].tokens

    assert of("seed=3") == of("seed=3") != of("seed=4")
    assert of("top_k=1") == of("top_p=0.00001") == of("min_p=1") == greedy
    assert of("seed=3\ttop_k=5") != greedy
    penalized = small.expected(small.tokenizer.encode(PROMPT).ids, 20, repetition_penalty=1.7)
    plain = converse(small.path, f"generate\t{PROMPT}\tspecial=1\tnew=20\tignore_eos=1\tpenalty=1.7")
    assert plain[0].tokens == penalized != greedy
    wrongs = [
        {"logit_bias": {"900": 1}},
        {"logit_bias": {"x": 1}},
        {"seed": -1},
        {"stop": [1]},
        {"top": 1},
        {"top_k": 0.5},
    ]
    for wrong in wrongs:
        assert converse(small.path, f"{line}\tjson={json.dumps(wrong)}")[0].error == "InvalidArgument", wrong
    for wrong in ("temperature=-1", "top_p=0", "top_p=2", "min_p=2", "top_k=-1", "penalty=0", "bos=-1"):
        assert converse(small.path, f"{line}\t{wrong}")[0].error == "InvalidArgument", wrong


def test_frequencies_are_the_probabilities(small: Small) -> None:
    """Frequencies of the first token over many seeds, among the three most probable tokens."""
    ids = small.tokenizer.encode("x").ids
    with torch.no_grad():
        logits = small.model(torch.tensor([ids])).logits[0, -1]
    top = (logits / 0.7).topk(3)
    lines = []
    for seed in range(600):
        lines += [f"generate\tx\tspecial=1\tnew=1\ttemperature=0.7\ttop_k=3\tseed={seed}", "reset"]
    chosen = [result.tokens[-1] for result in converse(small.path, *lines)[::2]]
    for token, chance in zip(top.indices.tolist(), top.values.softmax(0).tolist(), strict=True):
        assert abs(chosen.count(token) / 600 - chance) < 5 * (chance * (1 - chance) / 600) ** 0.5
    assert set(chosen) <= set(top.indices.tolist())


def test_log_probabilities_are_those_of_a_session(small: Small) -> None:
    """A fork also continues independently."""
    session = llm.Session(small.path)
    line = f'steps\t{PROMPT}\tspecial=1\tnew=6\tignore_eos=1\ttemperature=1\tseed=4\tjson={{"logprobs": 3}}'
    (result,) = converse(small.path, line)
    answer = session.generate(PROMPT, max_tokens=6, ignore_end=True, temperature=1.0, seed=4, logprobs=3)
    for ours, piece in zip(result.answer.split(), answer, strict=True):
        pairs = [pair.split(":") for pair in ours.split(",")]
        theirs = [(piece.token, piece.logprob), *piece.top]
        assert [int(token) for token, _ in pairs] == [token for token, _ in theirs]
        assert [float(p) for _, p in pairs] == pytest.approx([p for _, p in theirs], abs=1e-4)

    more = "generate\t\tnew=9\tignore_eos=1"
    begun = f"generate\t{PROMPT}\tspecial=1\tnew=9\tignore_eos=1"
    parent, _, _, forked, _, again = converse(small.path, begun, "fork", "prefill\tno", more, "join", more)
    assert again.tokens[len(parent.tokens) :] != forked.tokens[-9:]
    assert again.tokens == small.expected(parent.tokens, 9)
    assert forked.tokens[:-9] == parent.tokens + small.tokenizer.encode("no", add_special_tokens=False).ids


GRAMMARS = [
    'root ::= "yes" | "no" [.!]*',
    "root ::= [^a-c]{2,40} | .{3}",
    'root ::= e\ne ::= t ("+" t)* # sums\nt ::= "(" e ")" | [0-9]{1,3}',
    'root ::= "a" root "b" | [à-ÿ日]+',
    'root ::= (item "\\n")+\nitem ::= "- " [\\x41-Z]{1,5} | "é"? "\\u00e9"',
    llm.grammar_of({}),
    llm.grammar_of(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "age": {"type": "integer", "maximum": 120},
            },
            "required": ["name", "age"],
        }
    ),
]


def test_grammars_constrain_as_in_a_session(small: Small) -> None:
    """The tokens are those of a session with the same grammar, greedy and drawn; the answer matches the grammar."""
    session, lines, expected = llm.Session(small.path), [], []
    for grammar in GRAMMARS:
        for options in ({}, {"temperature": 1.5, "seed": 1}, {"temperature": 3.0, "seed": 2}):
            options_text = json.dumps({**options, "grammar": grammar, "logprobs": 0})
            lines += ["reset", f"steps\tx\tspecial=1\tnew=60\tjson={options_text}"]
            expected.append(session.generate("x", max_tokens=60, grammar=grammar, **options).run())
    for result, answer in zip(converse(small.path, *lines)[1::2], expected, strict=True):
        tokens = [int(one.split(":")[0]) for one in result.answer.split()]
        assert [t for t in tokens if t not in (2, small.end)] == answer.tokens
        assert result.reason == answer.finish_reason
    reasons = [answer.finish_reason for answer in expected]
    assert reasons.count("stop") > 3
    text = converse(small.path, f"generate\tx\tspecial=1\tgrammar={GRAMMARS[0]}")[0]
    assert text.answer in ("yes", "no") or text.answer.startswith("no")


def test_invalid_grammars_are_rejected(small: Small) -> None:
    """The runner rejects the grammars that Python rejects, with the same messages, and continues."""
    from tests.llm.grammar.test_grammar import BAD

    good = f"generate\tx\tnew=1\tjson={json.dumps({'grammar': GRAMMARS[0]})}"
    lines = [
        f"generate\tx\tnew=1\tjson={json.dumps({'grammar': text})}" for text in BAD if text and text != 5
    ]
    results = converse(small.path, *lines, good)
    assert {line.error for line in results[:-1]} <= {"InvalidArgument", "OutOfResources"}
    assert results[-1].error == "Ok"


@pytest.mark.parametrize("keep", [None, 5])
def test_a_full_context_slides(small: Small, keep: int | None) -> None:
    """The context slides three times, as in Python; a later prompt drops earlier tokens."""
    count, keep_option = 3 * CONTEXT, "" if keep is None else f"\tkeep={keep}"
    options = {"on_full": "slide", "ignore_end": True, "presence_penalty": 0.1}
    answer = llm.Session(small.path).generate(PROMPT, max_tokens=count, keep=keep, **options).run()
    request_options = f"special=1\tignore_eos=1\tslide=1\tpresence=0.1{keep_option}"
    result, again, full = converse(
        small.path,
        f'steps\t{PROMPT}\tnew={count}\t{request_options}\tjson={{"logprobs": 0}}',
        f"generate\t{PROMPT}\tnew=2\t{request_options}",
        f"generate\t{PROMPT * 20}\tnew=2\t{request_options}",
    )
    tokens = [int(one.split(":")[0]) for one in result.answer.split()]
    assert (tokens, result.reason) == (answer.tokens, "length")
    assert len(result.tokens) <= CONTEXT + 1 and result.tokens[-40:] == answer.tokens[-40:]
    assert again.error == "Ok" and again.tokens[:1] == result.tokens[:1]
    assert (full.error, full.tokens) == ("OutOfResources", again.tokens)


def test_a_conversation_by_messages(small: Small, tmp_path: Path) -> None:
    """Messages are rendered with the file's template, as in Python; the tokens of earlier turns are not computed again."""
    (tmp_path / "model").mkdir()
    for path in small.folder.iterdir():
        if path.suffix != ".pte":
            (tmp_path / "model" / path.name).write_bytes(path.read_bytes())
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}[assistant]"
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    path = tmp_path / "chat.pte"
    llm.export(tmp_path / "model", max_prefill=CHUNK).save(path)
    session = llm.Session(path)
    messages = [{"role": "user", "content": 'Hi\t"there"'}]
    first = session.chat(messages, max_tokens=5).run()
    turns = [*messages, {"role": "assistant", "content": first.text}, {"role": "user", "content": "More"}]
    second = session.chat(turns, max_tokens=5).run()
    lines = [
        f"chat\t{json.dumps(m)}\tnew=5"
        for m in (messages, turns, [], [{"role": "user"}], [{"role": "user", "content": "x " * CONTEXT}])
    ]
    results = converse(path, *lines)
    assert [line.error for line in results] == [
        "Ok",
        "Ok",
        "InvalidArgument",
        "InvalidArgument",
        "OutOfResources",
    ]
    assert [line.answer for line in results[:2]] == [first.text, second.text]
    assert results[1].tokens[: len(session.tokens)] == list(session.tokens)
    assert converse(small.path, lines[0])[0].error == "NotFound", "no template"


def test_states_are_those_of_a_session(small: Small, tmp_path: Path) -> None:
    """A runner loads the states of a session and vice versa. It rejects other bytes and keeps its conversation."""
    session, state = llm.Session(small.path), tmp_path / "state"
    request_options = "new=8\tignore_eos=1"
    first, saved, more, _, loaded, again = converse(
        small.path,
        f"generate\t{PROMPT}\tspecial=1\t{request_options}",
        f"save\t{state}",
        f"generate\t and\t{request_options}",
        "reset",
        f"load\t{state}",
        f"generate\t and\t{request_options}",
    )
    assert first.tokens == saved.tokens == loaded.tokens and more.tokens == again.tokens
    assert sorted(tmp_path.iterdir()) == [state]
    session.load(state)
    assert list(session.tokens) == first.tokens
    conversation = more.tokens[:-8]
    answer = session.generate(conversation, max_tokens=8, ignore_end=True).run()
    assert [*conversation, *answer.tokens] == more.tokens
    assert answer.statistics.reused_tokens == len(first.tokens)
    session.rewind(20)
    session.save(tmp_path / "python")
    theirs, on, full, complete, back, end = converse(
        small.path,
        f"load\t{tmp_path / 'python'}",
        f"generate\t\t{request_options}",
        "generate\t\tignore_eos=1",  # to the end of the context
        f"save\t{tmp_path / 'full'}",
        f"load\t{tmp_path / 'full'}",
        "generate\t\tignore_eos=1",
    )
    assert theirs.tokens == first.tokens[:20] and on.tokens == small.expected(theirs.tokens, 8)
    assert len(full.tokens) == len(complete.tokens) == CONTEXT + 1 and len(back.tokens) == CONTEXT
    assert (end.error, end.reason, end.tokens) == ("Ok", "length", full.tokens)

    good = state.read_bytes()
    size = int.from_bytes(good[20:28], "little")
    head, numbers = json.loads(good[28 : 28 + size]), good[28 + size :]

    def changed(more: bytes = b"", **parts: Any) -> bytes:
        text = json.dumps({**head, **parts}).encode()
        return good[:20] + len(text).to_bytes(8, "little") + text + numbers + more

    tokens, parts = head["tokens"], head["state"]
    bad = [
        b"", good[:27], b"x" + good[1:], good[:-1], changed(b"x"), good[:20] + (1 << 63).to_bytes(8, "little") + good[28:],
        changed(model="1"), changed(tokens=[*tokens[:-1], 608]), changed(tokens=[*tokens[:-1], -1]), changed(tokens=[*tokens[:-1], 1.5]),
        changed(tokens=[*tokens[:-1], 1 << 64]), changed(tokens="1"), changed(tokens=tokens[1:]), changed(tokens=tokens * 9), changed(state=parts[1:]),
        changed(state=[[parts[0][0], "float16", parts[0][2]], *parts[1:]]), changed(state=[["x", *parts[0][1:]], *parts[1:]]), changed(state=3),
        changed(state=[[*parts[0][:2], [1, *parts[0][2][1:]]], *parts[1:]]), changed(state=[5] * len(parts)), b"[" * 100_000, changed(state=None),
    ]  # fmt: skip
    lines = [f"load\t{tmp_path / 'none'}", f"generate\t{PROMPT}\tspecial=1\t{request_options}"]
    for i, content in enumerate(bad):
        (tmp_path / f"bad{i}").write_bytes(content)
        lines.append(f"load\t{tmp_path / f'bad{i}'}")
    none, begun, *refused, on = converse(small.path, *lines, f"generate\t and\t{request_options}")
    assert none.error == "AccessFailed" and begun.tokens == first.tokens
    assert [line.error for line in refused] == ["InvalidExternalData"] * len(bad)
    assert on.tokens == more.tokens
    assert converse(small.path, f"save\t{tmp_path / 'no' / 'state'}")[0].error == "AccessFailed"


def test_a_draft_changes_no_answer(small: Small, tmp_path: Path) -> None:
    """Drafts by the model itself, which are all accepted, and by another model; greedy, drawn, with a grammar, in a full context."""
    config = transformers.LlamaConfig(**{**small.model.config.to_dict(), "num_hidden_layers": 1})
    torch.manual_seed(3)
    draft_model = transformers.LlamaForCausalLM(config).eval()
    draft_model.load_state_dict(small.model.state_dict(), strict=False)
    path, target_path = tmp_path / "draft.pte", tmp_path / "whole.pte"
    llm.export(draft_model, max_prefill=CHUNK).save(path)
    llm.export(small.folder, max_prefill=CHUNK, full_logits=True).save(target_path)
    (tmp_path / "tokenizer.json").write_bytes((small.folder / "tokenizer.json").read_bytes())
    tokenizer = tmp_path / "tokenizer.json"
    session, draft = llm.Session(target_path), llm.Session(path)
    requests: list[dict[str, Any]] = [
        {}, {"ignore_eos": True}, {"temperature": 1.2, "seed": 3, "ignore_eos": True}, {"temperature": 0.9, "top_k": 5, "seed": 1},
        {"grammar": GRAMMARS[-1]}, {"grammar": GRAMMARS[1], "temperature": 2.0, "seed": 7}, {"repetition_penalty": 1.3, "ignore_eos": True},
    ]  # fmt: skip
    ids = small.tokenizer.encode(PROMPT).ids
    lines, expected = [], []
    for options in requests:
        lines += ["reset", f"steps\t{PROMPT}\tspecial=1\tnew=40\tjson={json.dumps(options)}", "drafted"]
        options_of_session = {k: v for k, v in options.items() if k != "ignore_eos"}
        answer = session.generate(
            PROMPT, max_tokens=40, ignore_end="ignore_eos" in options, draft=draft, **options_of_session
        ).run()
        expected.append(answer)
    results = converse(target_path, f"draft\t{path}\t4", *lines, tokenizer=tokenizer)[1:]
    for line, drafted, options, answer in zip(results[1::3], results[2::3], requests, expected, strict=True):
        ours = [
            token
            for token in line.tokens[len(ids) :]
            if "ignore_eos" in options or token not in (2, small.end)
        ]
        assert (line.error, ours, line.reason) == ("Ok", answer.tokens, answer.finish_reason), options
        counts = [int(one) for one in drafted.answer.split()]
        assert counts == [answer.statistics.drafted_tokens, answer.statistics.accepted_tokens], options
    plain = converse(target_path, f"steps\t{PROMPT}\tspecial=1\tnew=60\tignore_eos=1", tokenizer=tokenizer)[
        0
    ].tokens
    assert results[4].tokens == plain[: len(ids) + 40]
    # with a model that returns only the last logits; removed; beyond the end of the context; without a draft
    long = f"generate\t{PROMPT}\tspecial=1\tignore_eos=1\tslide=1\tnew=200"
    lines = [
        f"draft\t{small.path}\t3",
        f"generate\t{PROMPT}\tspecial=1\tnew=60\tignore_eos=1",
        "drafted",
        "reset",
        long,
    ]
    _, complete, count, _, slid, _, _, alone, none = converse(
        small.path, *lines, "draft\t\t3", "reset", long, f"draft\t{tmp_path / 'none'}\t3"
    )
    assert complete.tokens == plain and slid.tokens == alone.tokens and slid.reason == "length"
    drafted, accepted = map(int, count.answer.split())
    assert drafted == accepted > 20 and none.error == "Ok"
    (_, bad) = converse(small.path, f"draft\t{tmp_path / 'none'}\t3", "generate\tx")
    assert bad.error == "AccessFailed"


def test_frequencies_with_a_draft(small: Small) -> None:
    """Frequencies of pairs of tokens are the same with and without a draft."""
    lines = []
    for seed in range(300):
        lines += [
            f"generate\tx\tspecial=1\tnew=3\ttemperature=0.9\ttop_k=2\tignore_eos=1\tseed={seed}",
            "reset",
        ]
    plain, drafted = (
        [tuple(result.tokens[-2:]) for result in converse(small.path, *before, *lines)[len(before) :: 2]]
        for before in ([], [f"draft\t{small.path}\t2"])
    )
    for pair in {*plain, *drafted}:
        chance = plain.count(pair) / 300
        assert abs(drafted.count(pair) / 300 - chance) < 5 * (2 * max(chance, 0.01) / 300) ** 0.5
    assert len(set(drafted)) > 3


def test_files_of_other_models_are_rejected(small: Small, tmp_path: Path) -> None:
    import torchette

    module = torch.nn.Linear(3, 4).eval()
    torchette.compile(module, (torch.ones(1, 3),)).save(tmp_path / "linear.pte")
    (result,) = converse(tmp_path / "linear.pte", "generate\tx")
    assert result.error == "NotSupported"
    (result,) = converse(tmp_path / "linear.pte", "generate\tx", tokenizer=small.folder / "tokenizer.json")
    assert result.error == "NotSupported"
    (result,) = converse(tmp_path / "none.pte", "generate\tx")
    assert result.error == "AccessFailed"


def test_the_program(small: Small, tmp_path: Path) -> None:
    program = built("llm_runner")
    ids = small.tokenizer.encode(PROMPT).ids
    expected = [
        token for token in small.expected(ids, 20)[len(ids) :] if token < small.tokenizer.get_vocab_size()
    ]
    command = (program, "--model", small.path, "--prompt", PROMPT, "--max_new_tokens", "20", "--ignore_eos")
    done = run(*command, "--stats", "--cpu_threads", "1")
    assert done.stdout == small.tokenizer.decode(expected) + "\n"
    stats = json.loads(done.stderr)
    assert (stats["prompt_tokens"], stats["generated_tokens"], stats["finish_reason"]) == (
        len(ids),
        20,
        "length",
    )
    assert run(*command, "--tokenizer", small.folder / "tokenizer.json").stdout == done.stdout
    assert run(*command, "--echo").stdout == PROMPT + done.stdout
    # a conversation in two parts, with a draft that changes nothing; a schema
    state = tmp_path / "state"
    first = run(*command, "--save", state, "--draft", small.path, "--stats")
    assert first.stdout == done.stdout and json.loads(first.stderr)["accepted_tokens"] > 4
    more = (
        program,
        "--model",
        small.path,
        "--prompt",
        "",
        "--no_special_tokens",
        "--max_new_tokens",
        "9",
        "--ignore_eos",
    )
    on = small.expected(small.expected(ids, 20), 9)[-9:]
    assert run(*more, "--load", state).stdout == small.tokenizer.decode([t for t in on if t < 600]) + "\n"
    (tmp_path / "schema").write_text('{"const": [1]}')
    assert run(*more, "--load", state, "--schema", tmp_path / "schema").stdout == "[1]\n"
    assert "the conversation: InvalidExternalData" in run(*more, "--load", __file__, status=1).stderr
    assert "the adapter: InvalidArgument" in run(*more, "--adapter", __file__, status=1).stderr
    printed = run(program, "--help").stdout
    assert "usage: llm_runner" in printed
    assert all(f"--{option.name} " in printed and option.description in printed for option in TABLE)
    spelled = (*command[:5], "--maxTokens", "20", "--ignore-end", "--temp", "0", "--no-echo")
    assert (
        run(*spelled, "--logit_bias", '{"3": -1e300}', "--stop", "never", "--stop", "x\x01y").stdout
        == done.stdout
    )
    for wrong, message in [
        (("--top_p", "much"), 'top_p must be a number above 0 and at most 1, got "much"'),
        (("--top_p", "0"), "top_p must be a number above 0 and at most 1, got 0"),
        (("--num_bos", "200"), "num_bos must be an integer from 0 to 127, got 200"),
        (("--top_k", "-1"), "top_k must be an integer from 0 to 2147483647, got -1"),
        (("--logit_bias", "3"), "logit_bias must be an object with a number for each token"),
        (("--top_pp", "1"), "did you mean top_p"),
        (("--bogus", "1"), "--bogus is not an option"),
        (("--no_top_p",), "--no_top_p is not an option"),
        (("--seed",), "--seed needs a value"),
        (("--cpu_threads", "-1"), "--cpu_threads must be an integer of at least 0, got -1"),
    ]:
        assert message in run(*command, *wrong, status=2).stderr, wrong
    assert "is not a tokenizer" in run(*command, "--tokenizer", __file__, status=2).stderr
    assert "InvalidProgram" in run(program, "--model", __file__, "--prompt", "x", status=1).stderr


# --- The C interface and Java ---


def test_the_c_interface(small: Small, tmp_path: Path) -> None:
    built("torchette_llm_shared")
    library = ctypes.CDLL(str(BUILD / "libtorchette_llm.so"))
    library.torchette_llm_position.restype = ctypes.c_size_t
    handle, stats, config = ctypes.c_void_p(), Stats(ctypes.sizeof(Stats)), Config()
    assert library.torchette_llm_open(str(small.path).encode(), None, ctypes.byref(handle)) == 0
    library.torchette_llm_config_init(ctypes.byref(config), ctypes.c_size_t(ctypes.sizeof(config)))
    assert config.size == ctypes.sizeof(Config)
    # An option without a default is a null pointer. Echo is off, because a C caller has the prompt.
    for option in TABLE:
        value = getattr(config, option.name)
        if option.default is None or option.name == "echo":
            assert not value, option.name
        else:
            assert value == pytest.approx(float(option.default)), option.name
    config.temperature, config.max_new_tokens, config.add_special_tokens, config.ignore_eos = 0, 12, 1, 1
    pieces: list[bytes] = []

    def generate(stop_at: int = 0) -> int:
        def on_token(piece: int, size: int, user: int) -> int:
            pieces.append(ctypes.string_at(piece, size))
            return int(len(pieces) == stop_at)

        pieces.clear()
        return library.torchette_llm_generate(
            handle, PROMPT.encode(), ctypes.byref(config), ON_TOKEN(on_token), None, ctypes.byref(stats)
        )

    ids = small.tokenizer.encode(PROMPT).ids
    expected = [
        token for token in small.expected(ids, 12)[len(ids) :] if token < small.tokenizer.get_vocab_size()
    ]
    assert generate() == 0 and b"".join(pieces).decode() == small.tokenizer.decode(expected)
    assert (stats.prompt, stats.generated, stats.reason) == (len(ids), 12, b"length")
    assert library.torchette_llm_position(handle) == len(ids) + 12
    library.torchette_llm_reset(handle)
    assert generate(stop_at=2) == 0 and stats.reason == b"cancelled" and len(pieces) == 2
    assert library.torchette_llm_rewind(handle, ctypes.c_size_t(3)) == 0
    assert library.torchette_llm_position(handle) == 3
    assert library.torchette_llm_prefill(handle, b"more") == 0

    token_ids, count = (ctypes.c_uint64 * 64)(), ctypes.c_size_t()
    assert library.torchette_llm_tokenize(handle, PROMPT.encode(), 1, token_ids, 64, ctypes.byref(count)) == 0
    assert token_ids[: count.value] == ids
    text, size = ctypes.create_string_buffer(5), ctypes.c_size_t()
    assert library.torchette_llm_detokenize(handle, token_ids, count, text, 5, ctypes.byref(size)) == 0
    assert (text.value, size.value) == (PROMPT[:4].encode(), len(PROMPT))

    # in steps, and a fork
    library.torchette_llm_reset(handle)
    biases = (Bias * 1)(Bias(17, 100.0))
    config.logit_bias, config.num_logit_bias, config.logprobs = biases, 1, 2
    piece, fork = Piece(), ctypes.c_void_p()
    assert library.torchette_llm_begin(handle, PROMPT.encode(), ctypes.byref(config)) == 0
    assert library.torchette_llm_next(handle, ctypes.byref(piece)) == 0
    assert (piece.token, piece.is_last, piece.num_top) == (17, 0, 2)
    assert piece.logprob <= piece.top_logprobs[1] <= piece.top_logprobs[0] and piece.top_tokens[0] != 17
    assert library.torchette_llm_fork(handle, ctypes.byref(fork)) == 0
    for llm_handle in (handle, fork):
        config.num_logit_bias, config.grammar = 0, b'root ::= "yes" | "no"'
        assert library.torchette_llm_begin(llm_handle, b" so", ctypes.byref(config)) == 0
        text = b""
        while not piece.is_last or not text:
            assert library.torchette_llm_next(llm_handle, ctypes.byref(piece)) == 0
            text += piece.text
        assert text in (b"yes", b"no")
        assert library.torchette_llm_stats(llm_handle, ctypes.byref(stats)) == 0
        assert stats.reason == b"stop" and stats.generated > 0
    assert library.torchette_llm_next(handle, ctypes.byref(piece)) == 0x2, "the answer has ended"
    assert library.torchette_llm_begin_chat(handle, b"[]", None, ctypes.byref(config)) == 0x20, "no template"
    config.grammar = None
    # a schema, a state as a file, a draft
    config.schema = b'{"enum": ["maybe"]}'
    assert library.torchette_llm_begin(handle, b" so", ctypes.byref(config)) == 0
    assert library.torchette_llm_save(handle, str(tmp_path / "state").encode()) == 0
    expected = library.torchette_llm_position(handle)
    library.torchette_llm_reset(fork)
    assert library.torchette_llm_load(fork, str(tmp_path / "state").encode()) == 0
    assert library.torchette_llm_position(fork) == expected > 0
    assert library.torchette_llm_load(fork, str(small.path).encode()) == 0x24
    assert library.torchette_llm_set_draft(handle, handle, 4) == 0x12
    assert library.torchette_llm_set_draft(handle, fork, 4) == 0
    config.schema, config.temperature, config.max_new_tokens = None, 0, 9
    library.torchette_llm_free(fork)  # the runner keeps it alive while it is the draft
    args = (handle, b"x", ctypes.byref(config), None, None)
    assert library.torchette_llm_generate(*args, ctypes.byref(stats)) == 0
    assert stats.drafted == stats.accepted > 3
    # structures of other versions: bytes beyond the end of a smaller one do not change
    stats.size, stats.accepted = Stats.accepted.offset, -7
    assert library.torchette_llm_stats(handle, ctypes.byref(stats)) == 0
    assert (stats.drafted, stats.accepted) == (stats.drafted, -7) and stats.size == Stats.accepted.offset
    stats.size = 0
    assert library.torchette_llm_generate(*args, ctypes.byref(stats)) == 0x12
    assert library.torchette_llm_stats(handle, ctypes.byref(stats)) == 0x12
    older = Config(logprobs=-7)
    library.torchette_llm_config_init(ctypes.byref(older), ctypes.c_size_t(Config.logprobs.offset))
    assert (older.size, older.keep, older.logprobs) == (Config.logprobs.offset, -1, -7)
    older.temperature, older.max_new_tokens = 0, 2
    assert library.torchette_llm_begin(handle, b"x", ctypes.byref(older)) == 0
    assert library.torchette_llm_set_draft(handle, None, 4) == 0
    assert library.torchette_llm_set_adapter(handle, b"none") == 0x12, "the model has no adapters"

    # the error message is that of its runner, also if a second model was opened
    library.torchette_last_error.restype = ctypes.c_char_p
    library.torchette_set_log(None)
    second = ctypes.c_void_p()
    assert library.torchette_llm_open(str(small.path).encode(), None, ctypes.byref(second)) == 0
    assert library.torchette_llm_begin(second, b"x", ctypes.byref(Config(16, b'{"topK": 0.5}'))) == 0x12
    refused = library.torchette_last_error()
    assert refused == b"top_k must be an integer from 0 to 2147483647, got 0.5"
    library.torchette_llm_free(second)
    assert library.torchette_llm_open(b"none", None, ctypes.byref(second)) == 0x22
    assert b"backend" not in library.torchette_last_error()

    assert library.torchette_llm_generate(handle, None, None, None, None, None) == 0x12
    config.size = 0
    assert generate() == 0x12, "a configuration that was not initialized"
    library.torchette_llm_free(handle)
    library.torchette_llm_free(None)
    assert library.torchette_llm_open(b"none", None, ctypes.byref(handle)) == 0x22 and not handle.value
    header = (ROOT / "torchette/llm/engine/c_api.h").read_text()
    declared = {
        word.split("(")[0] for word in header.split() if word.startswith("torchette_llm_") and "(" in word
    }
    assert all(hasattr(library, name) for name in declared - {"torchette_llm_token_fn_t"}), declared


@pytest.mark.gate
def test_java(small: Small, tmp_path: Path) -> None:
    command = compile_java(tmp_path, Path(__file__).with_name("LlmModuleTest.java"))
    copy = tmp_path / "m\N{GRINNING FACE}del.pte"
    copy.write_bytes(small.path.read_bytes())
    args = (small.path, PROMPT, tmp_path / "state", tmp_path)
    printed = run(*command, "LlmModuleTest", *args).stdout
    assert Path(f"{copy}.state").exists()
    values = {name: text for name, _, text in (line.partition(": ") for line in printed.split("\n"))}
    assert (
        values["stopped"].startswith(f'0{{"prompt_tokens":{len(small.tokenizer.encode(PROMPT).ids)}')
        and '"finish_reason":"cancelled"' in values["stopped"]
    )
    assert all(
        values[f"{where} with zero"].startswith("a string contains U+0000 at index")
        for where in ("load", "state", "adapter", "prefill")
    )
    assert (
        values["emoji"]
        == "0 18 18 unknown generation option \N{GRINNING FACE}; options.def lists the options"
    )
    assert values["path"].startswith("0 34 ") and "\N{GRINNING FACE}none.pte" in values["path"]
    line = f"generate\t{PROMPT}\tspecial=1\tnew=9\tseed=3\ttemperature=2"
    biased = converse(small.path, line + '\tjson={"logit_bias": {"599": -1e300}}')[0].answer
    assert values["set"] == "0" + biased.replace("\0", "")
    assert values["defaults"] == " ".join(
        str(option.default).lower()
        for option in TABLE
        if option.name
        in ("echo", "max_new_tokens", "warming", "seq_len", "temperature", "num_bos", "num_eos")
    )
    assert values["template"] == "32 32 the file has no chat template"
    assert (values["prefill"], values["thrown"], values["closed"]) == ("0", "mine", "the module is closed")
    assert values["none"] == "34" and "WARNING" not in printed
    # the model accepts no images, audio or adapters; a restored state continues the conversation
    assert values["media"] == "18 18 18 18 18" and values["sizes"] == "the sizes do not match 6 values"
    args = "special=1\tnew=12"
    on = converse(small.path, f"generate\t{PROMPT}\t{args}", f"generate\t so\t{args}")[1]
    assert values["state"] == "0 0 36 0" + on.answer
