# SPDX-License-Identifier: BSD-3-Clause
# In: sessions on a double with logits that depend on all earlier tokens. Out: an answer depends only on the tokens before it, not
# on the calls that led there; the rules of stop strings, drafts, sliding contexts and cancellation.

from __future__ import annotations

import collections
import copy
import json
import pickle
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.llm.double import (
    BEGIN,
    END,
    FakeDecoder,
    HeldDecoder,
    RecurrentDecoder,
    log_softmax,
    probabilities,
    session,
    tokenizer_json,
)
from torchette.errors import ExecutionError, FormatError, InputError, InputTypeError
from torchette.llm import Grammar, Session

pytest.importorskip("tokenizers")
PROMPT = [BEGIN, *b"Once upon a time"]
DECODERS = pytest.mark.parametrize("kind", [FakeDecoder, RecurrentDecoder])


def greedy(decoder: FakeDecoder, prompt: list[int], count: int) -> list[int]:
    """Returns the greedy tokens, computed without a session."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(decoder.logits(np.array(tokens)).argmax()))
    return tokens[len(prompt) :]


def test_greedy_tokens_and_their_text():
    llm_session = session()
    answer = llm_session.generate("Once upon a time", max_tokens=20, ignore_end=True, logprobs=3)
    pieces = list(answer)
    assert (
        answer.tokens == [p.token for p in pieces if p.token is not None] == greedy(FakeDecoder(), PROMPT, 20)
    )
    assert answer.text == "".join(p.text for p in pieces) == llm_session.decode(answer.tokens)
    assert answer.finish_reason == "length" and answer.statistics.answer_tokens == 20 == len(answer.tokens)
    assert llm_session.tokens == (*PROMPT, *answer.tokens[:-1])
    tokens = list(PROMPT)
    for piece in pieces[:20]:
        logs = log_softmax(FakeDecoder().logits(np.array(tokens)))
        np.testing.assert_allclose(piece.logprob, logs[piece.token])
        assert [t for t, _ in piece.top] == list(np.argsort(-logs)[:3])
        np.testing.assert_allclose([log for _, log in piece.top], np.sort(logs)[::-1][:3])
        tokens.append(piece.token)


def test_common_prefix_of_two_prompts_is_computed_once():
    decoder = FakeDecoder()
    llm_session = session(decoder)
    llm_session.generate([*PROMPT, 1, 2, 3], max_tokens=1).run()
    before = decoder.fed
    answer = llm_session.generate([*PROMPT, 1, 9, 9, 9], max_tokens=4, ignore_end=True).run()
    assert decoder.fed - before == 3 + 3 and answer.statistics.reused_tokens == len(PROMPT) + 1
    assert answer.tokens == greedy(FakeDecoder(), [*PROMPT, 1, 9, 9, 9], 4)
    again = llm_session.generate([*PROMPT, 1, 9, 9, 9], max_tokens=4, ignore_end=True).run()
    assert again.tokens == answer.tokens and again.statistics.reused_tokens == len(PROMPT) + 3


@DECODERS
@pytest.mark.parametrize("seed", range(8))
def test_answers_do_not_depend_on_the_history_of_calls(seed, kind, tmp_path):
    rng = random.Random(seed)
    sessions = [session(kind())]
    for step in range(25):
        llm_session = rng.choice(sessions)
        do = rng.randrange(6)
        if do == 0:
            llm_session.rewind(rng.randint(0, len(llm_session.tokens)))
        elif do == 1 and len(sessions) < 5:
            fork = llm_session.fork()
            assert fork.tokens == llm_session.tokens
            sessions.append(fork)
        elif do == 2:
            llm_session.save(tmp_path / "state")
            restored = session(kind())
            restored.load(tmp_path / "state")
            assert restored.tokens == llm_session.tokens
            sessions[sessions.index(llm_session)] = restored
        elif do == 3:  # abandons an answer
            next(
                llm_session.generate([BEGIN, *rng.randbytes(rng.randint(1, 20))], seed=step, temperature=1.0)
            )
        else:
            prompt = [*llm_session.tokens[: rng.randrange(40)], rng.randrange(256)]
            options = {
                "max_tokens": rng.randint(1, 15),
                "seed": rng.randrange(5),
                "temperature": rng.choice([0, 0.8]),
                "on_full": "slide",
            }
            answer, fresh = (s.generate(prompt, **options).run() for s in (llm_session, session()))
            assert (answer.tokens, answer.text, answer.finish_reason) == (
                fresh.tokens,
                fresh.text,
                fresh.finish_reason,
            )
            assert llm_session.tokens == fresh._session.tokens


def test_recurrent_state_is_restored_to_the_end_of_a_prompt():
    decoder = RecurrentDecoder()
    llm_session = session(decoder)
    llm_session.generate(PROMPT, max_tokens=9, ignore_end=True).run()
    prompt = [*PROMPT, 1, 2, 3]
    for generated, reused in (
        (prompt, len(PROMPT) - 1),
        (prompt, len(prompt) - 1),
        (PROMPT, len(PROMPT) - 1),
    ):
        before = decoder.fed
        answer = llm_session.generate(generated, max_tokens=4, ignore_end=True).run()
        assert answer.tokens == greedy(FakeDecoder(), generated, 4)
        assert answer.statistics.reused_tokens == reused
        assert decoder.fed - before == len(generated) - reused + 3
    llm_session.rewind(4)
    assert llm_session.tokens == tuple(PROMPT[:4])
    assert llm_session.generate([*PROMPT[:4], 7], max_tokens=1).run().statistics.reused_tokens == 0


def test_seed_determines_the_answer():
    answers = [
        session().generate(PROMPT, max_tokens=20, temperature=1.0, seed=seed).run().tokens
        for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]


def test_drawn_tokens_have_the_distribution_of_the_logits():
    llm_session = session(FakeDecoder(size=259, sharpness=1.5))
    row = FakeDecoder(size=259, sharpness=1.5).logits(np.array(PROMPT))
    expected = probabilities(row, 0.9, 10)
    counts = collections.Counter(
        llm_session.generate(PROMPT, max_tokens=1, temperature=0.9, top_k=10, seed=seed, ignore_end=True)
        .run()
        .tokens[0]
        for seed in range(3000)
    )
    assert set(counts) <= set(np.flatnonzero(expected))
    possible = np.flatnonzero(expected)
    statistic = sum((counts[t] - 3000 * expected[t]) ** 2 / (3000 * expected[t]) for t in possible)
    assert statistic < 27.9  # chi-squared, 9 degrees of freedom: exceeded with probability 0.001


# --- ends of answers ----------------------------------------------------------------------------------------------------


def test_end_token_ends_the_answer_and_is_not_in_it():
    decoder = FakeDecoder()
    decoder.bias[END] = 9
    llm_session = session(decoder)
    answer = llm_session.generate(PROMPT, temperature=1.0, seed=0).run()
    assert answer.finish_reason == "stop" and END not in answer.tokens
    assert (
        END
        in llm_session.generate(PROMPT, temperature=1.0, seed=0, max_tokens=30, ignore_end=True).run().tokens
    )


def test_stop_strings_are_never_emitted_in_part():
    complete = session().generate(PROMPT, max_tokens=40, ignore_end=True, temperature=0.8, seed=5).run().text
    for at in range(3, len(complete) - 4, 5):
        stop = complete[at : at + 3]
        shown = ""
        answer = session().generate(
            PROMPT, max_tokens=40, ignore_end=True, temperature=0.8, seed=5, stop=["no such", stop]
        )
        for piece in answer:
            shown += piece.text
            assert complete.startswith(shown) and len(shown) <= complete.find(stop)
        assert shown == answer.text == complete[: complete.find(stop)] and answer.finish_reason == "stop"


def test_a_full_context_stops_slides_or_raises():
    llm_session = session()
    answer = llm_session.generate(PROMPT, ignore_end=True).run()
    assert (
        answer.finish_reason == "length" and len(PROMPT) + len(answer.tokens) == llm_session.max_context + 1
    )
    with pytest.raises(ExecutionError, match="context of 64 tokens is full") as caught:
        llm_session.generate(PROMPT, ignore_end=True, on_full="error").run()
    assert caught.value.code == "context-full"
    slid = llm_session.generate(PROMPT, ignore_end=True, on_full="slide", max_tokens=150, keep=3).run()
    assert slid.finish_reason == "length" and len(slid.tokens) == 150
    held, expected = list(PROMPT), []  # the same by hand
    while len(expected) < 150:
        expected.append(int(FakeDecoder().logits(np.array(held)).argmax()))
        if len(held) == 64:
            held = held[:3] + held[3:][31:]
        held.append(expected[-1])
    assert slid.tokens == expected
    full = llm_session.generate([1] * 64, max_tokens=1).run()
    assert len(full.tokens) + (full.finish_reason == "stop") == 1
    with pytest.raises(InputError, match="the prompt has 65 tokens, the context 64") as beyond:
        llm_session.generate([1] * 65)
    assert beyond.value.code == "prompt-too-long"


@DECODERS
def test_cancel_from_another_thread_ends_only_the_answer(kind):
    decoder = kind(context=4096)
    decoder.seconds = 0.002
    llm_session = session(decoder)
    for _ in range(5):
        answer = llm_session.generate(PROMPT, ignore_end=True)
        next(answer)  # the time of the prompt depends on the load of the machine
        threading.Timer(0.03, llm_session.cancel).start()
        answer.run()
        assert answer.finish_reason == "cancelled" and 0 < len(answer.tokens) < 4000
        assert llm_session.generate(PROMPT, ignore_end=True, max_tokens=5).run().tokens == greedy(
            FakeDecoder(), PROMPT, 5
        )
    llm_session.cancel()  # of nothing
    assert llm_session.generate(PROMPT, ignore_end=True, max_tokens=2).run().finish_reason == "length"


def test_abandoned_answer_does_not_continue_in_the_next_answer():
    llm_session = session()
    old = llm_session.generate(PROMPT, ignore_end=True)
    next(old)
    new = llm_session.generate(PROMPT, ignore_end=True, max_tokens=9)
    next(new)
    assert list(old) == [] and old.finish_reason == "cancelled"
    assert new.run().tokens == greedy(FakeDecoder(), PROMPT, 9)


# --- grammars -----------------------------------------------------------------------------------------------------------


def test_answer_matches_the_schema_and_ends():
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 4},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
        },
        "required": ["name", "age"],
    }
    for seed in range(30):
        decoder = FakeDecoder(context=512)
        for byte in b'"}':
            decoder.bias[byte] = 3
        answer = session(decoder).generate(PROMPT, schema=schema, temperature=1.0, seed=seed).run()
        value = json.loads(answer.text)
        assert (
            answer.finish_reason == "stop"
            and len(value["name"]) <= 4
            and 0 <= value["age"] <= 120
            and len(value) == 2
        )


def test_a_grammar_keeps_the_model_from_ending_too_soon():
    decoder = FakeDecoder()
    decoder.bias[END] = 100
    assert session(decoder).generate(PROMPT, grammar='root ::= "ab" "c"*').run().text == "ab"
    assert session().generate(PROMPT, grammar='root ::= "torchette!"').run().text == "torchette!"


def test_grammar_without_possible_tokens_is_an_error():
    llm_session = session(tokenizer=tokenizer_json().replace(b'"z":122', b'"zz":122'))
    with pytest.raises(ExecutionError, match="no token can be chosen"):
        llm_session.generate(PROMPT, grammar='root ::= "z"').run()


# --- drafts -------------------------------------------------------------------------------------------------------------


@DECODERS
@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize("seed", [0, 7], ids=["same model", "another"])
def test_a_draft_changes_no_greedy_token(every, seed, kind):
    for count in (1, 2, 17, 46):
        llm_session, draft = session(kind(every=every)), session(kind(seed=seed))
        answer = llm_session.generate(
            PROMPT, max_tokens=count, ignore_end=True, draft=draft, draft_tokens=3
        ).run()
        assert answer.tokens == greedy(FakeDecoder(), PROMPT, count)
        done = answer.statistics
        assert done.accepted_tokens == (done.drafted_tokens if seed == 0 else 0)
        assert llm_session.tokens[: len(PROMPT)] == tuple(PROMPT)
    schema = {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}
    texts = [
        session(kind(every=every)).generate(PROMPT, schema=schema, draft=d).run().text
        for d in (None, session(kind(seed=seed)))
    ]
    assert texts[0] == texts[1] and isinstance(json.loads(texts[0]), list)


@DECODERS
@pytest.mark.parametrize("count", range(2, 7))
def test_abandoned_answer_leaves_no_proposed_token_in_the_state(count, kind):
    """All proposed tokens are accepted; the caller stops reading in the middle of them."""
    llm_session = session(kind(every=True))
    answer = llm_session.generate(PROMPT, ignore_end=True, draft=session(kind(seed=0)), draft_tokens=3)
    for _ in range(count):
        next(answer)
    answer.close()
    history = [*PROMPT, *answer.tokens]
    assert (
        list(llm_session.tokens) == history[: len(llm_session.tokens)]
        and len(history) - len(llm_session.tokens) <= 1
    )
    again = llm_session.generate(history, ignore_end=True, max_tokens=5).run()
    assert again.tokens == greedy(FakeDecoder(), history, 5)


@DECODERS
def test_a_draft_keeps_the_distribution(kind):
    """Frequencies of pairs of tokens: the first depends on the prompt, the second on the acceptance of a proposal."""
    size, runs = 4, 4000
    target, guide = kind(size=size, every=True, sharpness=1.0), kind(size=size, seed=5, sharpness=1.0)
    llm_session, draft = Session(target), Session(guide)
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    num_accepted = 0
    for seed in range(runs):
        answer = llm_session.generate(
            [1, 2], max_tokens=3, temperature=1.0, seed=seed, draft=draft, draft_tokens=2
        ).run()
        counts[tuple(answer.tokens)] += 1
        num_accepted += answer.statistics.accepted_tokens
    assert runs * 0.2 < num_accepted < runs * 1.95  # some proposals are accepted, some are not
    statistic, cells = 0.0, 0
    for first in range(size):
        for second in range(size):
            for third in range(size):
                p = 1.0
                for i, token in enumerate((first, second, third)):
                    p *= probabilities(target.logits(np.array([1, 2, first, second][: 2 + i])), 1.0)[token]
                statistic += (counts[first, second, third] - runs * p) ** 2 / (runs * p)
                cells += 1
    # chi-squared, 63 degrees of freedom: exceeded with probability 0.001
    assert cells == 64 and statistic < 103.4


@DECODERS
def test_draft_works_when_the_context_slides_or_ends(kind):
    for on_full in ("stop", "slide"):
        plain, drafted = (
            session(kind(every=True))
            .generate(PROMPT, max_tokens=120, ignore_end=True, on_full=on_full, draft=draft)
            .run()
            for draft in (None, session(kind(seed=0, context=50)))
        )
        assert plain.tokens == drafted.tokens and plain.finish_reason == drafted.finish_reason


# --- invalid arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": -2}, {"max_tokens": 1.5}, {"max_tokens": True}, {"stop": ""}, {"stop": ["a", 5]}, {"seed": -1}, {"logprobs": -2},
        {"on_full": "grow"}, {"keep": 63}, {"draft_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"logit_bias": {259: 1}},
        {"logit_bias": {-1: 1}}, {"grammar": "x"}, {"grammar": 5}, {"schema": 5}, {"schema": {}, "grammar": "root ::= \"a\""}, {"temprature": 1},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_options_are_named(options):
    llm_session = session()
    with pytest.raises(InputError) as caught:
        llm_session.generate(PROMPT, **options)
    name = next(iter(options))
    known = {"max_tokens": "max_new_tokens"}.get(name, name)
    assert known in str(caught.value) or caught.value.code in ("bad-grammar", "bad-schema")
    assert isinstance(caught.value, InputTypeError) == ("temprature" in options)
    assert llm_session.generate(PROMPT, max_tokens=2, ignore_end=True).run().tokens == greedy(
        FakeDecoder(), PROMPT, 2
    )


def test_invalid_prompts_and_drafts_are_named():
    llm_session = session()
    for prompt in ([], [259], [-1], [1.5], [True], ["a"], "a\udc80"):
        with pytest.raises(InputError):
            llm_session.generate(prompt)
    for draft in (llm_session, session(FakeDecoder(size=260))):
        with pytest.raises(InputError, match="draft"):
            llm_session.generate(PROMPT, draft=draft)
    for count in (-1, 1, True, 0.5):
        with pytest.raises(InputError, match="cannot keep the first"):
            llm_session.rewind(count)
    bare = Session(FakeDecoder())
    assert bare.generate([1, 2], max_tokens=2, ignore_end=True).run().tokens == greedy(
        FakeDecoder(), [1, 2], 2
    )
    for ask in (lambda: bare.generate("text"), lambda: bare.chat([{"role": "user", "content": "x"}])):
        with pytest.raises(FormatError) as caught:
            ask()
        assert caught.value.code in ("unknown-tokenizer", "no-chat-template")


@DECODERS
def test_session_continues_after_a_decoder_error(kind):
    decoder = kind()
    llm_session = session(decoder)
    answer = llm_session.generate(PROMPT, ignore_end=True)
    for _ in range(5):
        next(answer)
    decoder.cancel()  # not through the session
    with pytest.raises(ExecutionError):
        next(answer)
    assert llm_session.generate(PROMPT, ignore_end=True, max_tokens=8).run().tokens == greedy(
        FakeDecoder(), PROMPT, 8
    )


def test_states_of_other_models_and_damaged_states_are_rejected(tmp_path: Path):
    llm_session = session()
    llm_session.generate(PROMPT, max_tokens=5, ignore_end=True).run()
    path = tmp_path / "state"
    llm_session.save(path)
    good = path.read_bytes()
    original_tokens = llm_session.tokens
    rng = random.Random(0)
    for _ in range(200):
        bad = bytearray(good)
        if rng.random() < 0.5:
            bad = bad[: rng.randrange(len(bad))]
        else:
            bad[rng.randrange(len(bad) - 8 * len(original_tokens))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        second = session()
        try:
            second.load(path)
            assert len(second.tokens) <= second.max_context and all(
                0 <= t < second.vocab_size for t in second.tokens
            )
        except FormatError as error:
            assert error.code == "bad-state" and second.tokens == ()
    path.write_bytes(good)
    with pytest.raises(FormatError, match="another model"):
        session(FakeDecoder(context=128)).load(path)
    llm_session.load(path)
    assert llm_session.tokens == original_tokens


def test_defaults_of_the_file_apply_to_unset_options():
    defaults = {"do_sample": True, "temperature": 0.7, "top_k": 5, "repetition_penalty": 1.1}
    llm_session = session(generation=defaults)
    options = {"max_tokens": 20, "ignore_end": True, "seed": 3}

    def tokens(session: Session, **more: object) -> list[int]:
        return session.generate(PROMPT, **options, **more).run().tokens

    written = {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.1}
    assert tokens(llm_session) == tokens(session(), **written) != tokens(session(), temperature=0.7, top_k=5)
    assert tokens(llm_session, temperature=0) == tokens(session(), repetition_penalty=1.1)
    assert tokens(session(generation={"temperature": 0.7})) == tokens(session())


def test_conversations_use_the_template_of_the_file():
    llm_session = session()
    messages = [{"role": "user", "content": "Hi é"}]
    assert llm_session.render(messages) == "<s><user>Hi é<assistant>"
    answer = llm_session.chat(messages, max_tokens=3, ignore_end=True).run()
    assert answer.tokens == greedy(FakeDecoder(), [BEGIN, *"<user>Hi é<assistant>".encode()], 3)


# --- threads, copies ------------------------------------------------------------------------------------------------------


def test_two_threads_on_one_session_are_an_error_and_on_forks_are_not():
    decoder = HeldDecoder()
    llm_session = session(decoder)
    answer = llm_session.generate(PROMPT, ignore_end=True, max_tokens=3)
    fork = llm_session.fork()
    thread = threading.Thread(target=next, args=(answer,))
    thread.start()
    decoder.is_in_step.wait()
    with pytest.raises(ExecutionError, match="another thread uses this session") as caught:
        llm_session.rewind(0)
    assert caught.value.code == "session-busy" and "fork" in str(caught.value)
    assert fork.encode("a") == llm_session.encode("a")  # functions of the tokenizer are for all threads
    expected = greedy(FakeDecoder(context=4096), PROMPT, 3)
    assert fork.generate(PROMPT, ignore_end=True, max_tokens=3).run().tokens == expected
    decoder.may_go.set()
    thread.join()
    answer.run()
    assert answer.tokens == expected


def test_a_session_is_not_copied():
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(
            InputTypeError, match=r"a session cannot be pickled or copied(.|\n)*session\.fork\(\)"
        ):
            copied(session())


def test_a_draft_that_another_thread_uses_is_an_error():
    decoder = HeldDecoder()
    llm_session, draft = session(FakeDecoder(context=4096)), session(decoder)
    thread = threading.Thread(target=draft.generate(PROMPT, ignore_end=True, max_tokens=2).run)
    thread.start()
    decoder.is_in_step.wait()
    with pytest.raises(ExecutionError, match="another thread uses this session"):
        llm_session.generate(PROMPT, draft=draft, ignore_end=True, max_tokens=3).run()
    with pytest.raises(ExecutionError, match="another thread uses this session"):
        _ = draft.tokens
    decoder.may_go.set()
    thread.join()
    answer = llm_session.generate(PROMPT, draft=draft, ignore_end=True, max_tokens=3).run()
    assert answer.tokens == greedy(FakeDecoder(context=4096), PROMPT, 3)


def test_unsupported_options_of_a_session_are_rejected():
    llm_session = session()
    for name in ("echo", "warming", "num_bos", "addSpecialTokens"):
        with pytest.raises(InputTypeError, match="an option of the C\\+\\+ runner"):
            llm_session.generate(PROMPT, **{name: 1})
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(InputError, match="the request has no tools"):
        llm_session.chat(messages, tool_choice="required")
    with pytest.raises(InputError, match="messages is not a variable"):
        llm_session.chat(messages, template={"messages": "x"})
    names = {"self": "a", "image": "b"}
    named = session(template="{{ self }}{{ image }}{{ messages[0].content }}").chat(messages, template=names)
    assert named.statistics.prompt_tokens == len("abHi")


def test_a_maximum_of_new_tokens_replaces_the_models_maximum_length():
    llm_session = session(generation={"max_length": len(PROMPT) + 4})
    assert len(llm_session.generate(PROMPT, ignore_end=True).run().tokens) == 4
    assert len(llm_session.generate(PROMPT, ignore_end=True, max_tokens=9).run().tokens) == 9


@pytest.mark.parametrize("name", ["grammar", "gbnf"])
def test_a_grammar_is_text_or_parsed_by_all_its_names(name):
    llm_session = session()
    for value in ('root ::= "yes"', Grammar('root ::= "yes"')):
        assert llm_session.generate(PROMPT, **{name: value}).run().text == "yes"
    with pytest.raises(InputError, match="line 1") as caught:
        llm_session.generate(PROMPT, **{name: 'root ::= "yes'})
    assert caught.value.code == "bad-grammar"
    with pytest.raises(InputError, match="top_k must be "):
        llm_session.generate(PROMPT, top_k=Grammar('root ::= "yes"'))


def test_minus_one_is_the_default_of_the_table():
    llm_session = session()
    options = {"max_tokens": None, "logprobs": None, "keep": None, "ignore_end": True}
    pieces = list(llm_session.generate(PROMPT, **options))
    assert (
        list(llm_session.generate(PROMPT, **{**options, "max_tokens": -1, "logprobs": -1, "keep": -1}))
        == pieces
    )
    assert len(pieces) > 20 and {piece.logprob for piece in pieces} == {None}
    assert llm_session.generate(PROMPT, max_tokens=0).run().tokens == []
