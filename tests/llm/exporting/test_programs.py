# SPDX-License-Identifier: BSD-3-Clause
# In: files of language models on the real runtime. Out: the tokens of generate() of transformers; states survive forks and files;
# sessions of one file are independent; a session needs no torch; the commands of the terminal accept the files.

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm import double
from torchette import cli
from torchette.errors import FormatError, InputError, ModelNotFoundError
from torchette.llm import Session

pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llm") / "chat.pte"
    path.write_bytes(double.program())
    return path


def greedy(session: Session, prompt: Any = "Once", count: int = 30) -> list[int]:
    return session.generate(prompt, max_tokens=count, temperature=0, ignore_end=True).run().tokens


def test_prompts_in_parts_forks_and_files_have_the_tokens_of_a_new_session(file, tmp_path):
    first = Session(file)
    expected = greedy(Session(file.read_bytes()), "x" * 40, 20)
    assert greedy(first, "x" * 40, 20) == expected
    fork = first.fork()
    greedy(first, "something else")
    assert fork.tokens[1:41] == tuple(b"x" * 40)
    again = fork.generate("x" * 40, max_tokens=20, temperature=0, ignore_end=True).run()
    assert again.tokens == expected and again.statistics.reused_tokens == 40
    fork.save(tmp_path / "state")
    restored = first.new()
    restored.load(tmp_path / "state")
    last = restored.generate([*fork.tokens, 7], max_tokens=9, temperature=0, ignore_end=True).run()
    assert last.statistics.reused_tokens == len(fork.tokens)
    assert last.tokens == greedy(Session(file), [*fork.tokens, 7], 9)
    assert last.statistics.memory > 256 * 16 * 4 and last.statistics.tokens_per_second > 0


def test_sessions_of_one_file_in_threads_are_independent(file):
    first = Session(file)
    sessions = [first, first.new(), first.new()]
    expected = [greedy(Session(file), f"prompt {i}", 60) for i in range(3)]
    tokens_by_session: dict[int, list[int]] = {}
    threads = [
        threading.Thread(
            target=lambda i=i: tokens_by_session.update({i: greedy(sessions[i], f"prompt {i}", 60)})
        )
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [tokens_by_session[i] for i in range(3)] == expected


def test_cancel_reaches_a_running_program(file):
    running = Session(file)
    for wait in (0.0, 0.001, 0.01):
        answer = running.generate("Once", ignore_end=True, on_full="slide")
        threading.Timer(wait, running.cancel).start()
        answer.run()
        assert answer.finish_reason == "cancelled"
        assert greedy(running, "Once", 5) == greedy(running.new(), "Once", 5)


def test_session_needs_no_torch(file):
    code = (
        "import sys; sys.modules['torch'] = None; from torchette.llm import Session; s = Session(sys.argv[1]);"
        "print(s.chat([{'role': 'user', 'content': 'Hello'}], max_tokens=5, grammar='root ::= \"yes\"').run().text)"
    )
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=False)
    assert done.stdout == "yes\n", done.stderr


def test_program_without_a_language_model_is_an_error(file, tmp_path):
    import torchette

    with pytest.raises(ModelNotFoundError):
        Session(tmp_path / "nothing.pte")
    plain = torchette.compile(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),), backend="portable")
    with pytest.raises(FormatError, match="not a step of a language model"):
        Session(plain)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError) as caught:
        Session(file, tokenizer=tmp_path / "tokenizer.json")
    assert caught.value.code == "unknown-tokenizer"
    with pytest.raises(InputError, match="the context 256"):
        Session(file).generate("x" * 300)


def chat(
    file: Path, lines: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str
) -> str:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert cli.main(["chat", str(file), "--max-tokens", "12", "--temperature", "0", *more]) == 0
    return capsys.readouterr().out


def test_chat_answers_lines_and_clears_on_reset(file, monkeypatch, capsys):
    expected = Session(file).chat(HELLO, max_tokens=12, temperature=0).run().text
    assert chat(file, "Hello\n", monkeypatch, capsys) == expected + "\n"
    assert chat(file, "Hello\n\n/reset\nHello\n/exit\nHello\n", monkeypatch, capsys) == (expected + "\n") * 2
    history = [*HELLO, {"role": "assistant", "content": expected}, {"role": "user", "content": "More"}]
    second = Session(file).chat(history, max_tokens=12, temperature=0).run().text
    assert chat(file, "Hello\nMore\n", monkeypatch, capsys) == f"{expected}\n{second}\n"
    assert len(chat(file, "Hello, this is long\n" * 12, monkeypatch, capsys)) > 0  # beyond the context


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_chat_rejects_unknown_commands(file, monkeypatch, capsys):
    listed = chat(file, "/help\n", monkeypatch, capsys)
    commands = re.findall(r"^(/\w+)", listed, re.M)
    assert commands == ["/help", "/image", "/reset", "/exit"]
    expected = (
        Session(file).chat([{"role": "user", "content": "/x"}], max_tokens=12, temperature=0).run().text
    )
    assert chat(file, " /x\n", monkeypatch, capsys) == expected + "\n"
    for command in commands:  # each command is known: it is neither sent as a message nor rejected
        monkeypatch.setattr(sys, "stdin", Terminal(f"{command}\n"))
        assert cli.main(["chat", str(file)]) == 0
        assert "unknown command" not in capsys.readouterr().err

    for stdin, status in ((io.StringIO, 2), (Terminal, 0)):
        monkeypatch.setattr(sys, "stdin", stdin("/rest now\n/exit\n"))
        assert cli.main(["chat", str(file)]) == status
        printed = capsys.readouterr()
        assert "unknown command '/rest'; did you mean /reset? (/help" in printed.err
        assert not printed.out.replace("> ", "")
    monkeypatch.setattr(sys, "stdin", io.StringIO("/image nothing.png\n"))
    assert cli.main(["chat", str(file)]) == 2 and "nothing.png" in capsys.readouterr().err


def test_chat_answers_match_grammars_and_errors_are_named(file, tmp_path, monkeypatch, capsys):
    (tmp_path / "yes.gbnf").write_text('root ::= "yes" | "no"')
    assert chat(file, "Hello\n", monkeypatch, capsys, "--grammar", str(tmp_path / "yes.gbnf")) in (
        "yes\n",
        "no\n",
    )
    (tmp_path / "list.json").write_text(
        json.dumps({"type": "array", "items": {"type": "null"}, "maxItems": 2})
    )
    assert isinstance(
        json.loads(
            chat(
                file,
                "Hello\n",
                monkeypatch,
                capsys,
                "--schema",
                str(tmp_path / "list.json"),
                "--max-tokens",
                "60",
            )
        ),
        list,
    )
    for name, text in (("bad.json", "{"), ("bad.gbnf", "root ::= root")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
        option = "--schema" if name.endswith("json") else "--grammar"
        assert cli.main(["chat", str(file), option, str(tmp_path / name)]) == 2
        assert "torchette chat: " in capsys.readouterr().err


def test_prompt_option_continues_the_text_without_a_template(file, tmp_path, monkeypatch, capsys):
    expected = Session(file).generate("Once", max_tokens=12, temperature=0).run().text
    assert chat(file, "never read\n", monkeypatch, capsys, "--prompt", "Once") == expected + "\n"
    assert (
        chat(file, "", monkeypatch, capsys, "--prompt", "Once", "--seed", "1", "--statistics")
        == expected + "\n"
    )
    (tmp_path / "no.wav").write_bytes(b"RIFF")
    for more in (
        ["--audio", str(tmp_path / "no.wav")],
        ["--adapter", str(tmp_path / "no.ptd")],
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
        assert cli.main(["chat", str(file), *more]) != 0
        assert "torchette chat: " in capsys.readouterr().err
    sound = io.BytesIO()
    with wave.open(sound, "wb") as wave_file:
        wave_file.setparams((1, 2, 16_000, 0, "NONE", ""))
        wave_file.writeframes(bytes(3200))
    (tmp_path / "silence.wav").write_bytes(sound.getvalue())
    assert cli.main(["chat", str(file), "--audio", str(tmp_path / "silence.wav")]) != 0
    assert "not images or audio" in capsys.readouterr().err


def test_invalid_utf8_does_not_end_a_conversation(file):
    command = [sys.executable, "-m", "torchette", "chat", file, "--max-tokens", "2", "--draft", file]
    done = subprocess.run(command, input=b"a\xff\xfeb\nHello\n", capture_output=True, check=False)
    assert done.returncode == 0 and done.stdout.count(b"\n") >= 2, done.stderr


def hears_ctrl_c() -> None:
    """Restores SIGINT: a background job ignores it, and its child processes inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_answer_and_not_the_conversation(file):
    """The grammar forces a long answer."""
    (file.parent / "long.gbnf").write_text('root ::= "a"{200}')
    code = (  # 200 steps are longer than any pause of this process
        "import sys, time, torchette.llm.session as s; from torchette.cli import main; step = s.Session._next;"
        "s.Session._next = lambda *a: (time.sleep(0.1), step(*a))[1]; sys.exit(main(sys.argv[1:]))"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "chat",
        file,
        "--grammar",
        file.parent / "long.gbnf",
        "--temperature",
        "0",
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, preexec_fn=hears_ctrl_c
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for line in (b"Hello\n", b"Again\n"):
            process.stdin.write(line)
            assert process.stdout.read(1) == b"a"
            process.send_signal(signal.SIGINT)
            count = 0
            while process.stdout.read(1) == b"a":
                count += 1
            assert count < 150
        process.stdin.close()
        assert process.wait(120) == 0


def test_serve_serves_a_file_until_ctrl_c(file):
    import urllib.request

    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "torchette", "serve", file, "--port", "0", "--sessions", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, preexec_fn=hears_ctrl_c,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://[^;\s]+", line)[0]
        body = json.dumps({"messages": HELLO, "max_tokens": 5, "temperature": 0}).encode()
        request = urllib.request.Request(
            f"{address}/chat/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        expected = Session(file).chat(HELLO, max_tokens=5, temperature=0).run()
        assert answer["model"] == "chat" and answer["choices"][0]["message"]["content"] == expected.text
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


def test_llama_has_the_tokens_of_transformers(tmp_path):
    from tests.models import zoo

    _ = zoo.declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from torchette.llm import export

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(
        ["The quick brown fox jumps over the lazy dog. Größe, 日本語"] * 30, trainer
    )
    size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(double.TEMPLATE)
    session = Session(export(tmp_path, max_context=160, max_prefill=16, full_logits=True))
    prompt = session.encode("The quick brown fox jumps over the lazy dog and again over it.")
    with torch.no_grad():
        reference = model.generate(
            torch.tensor([prompt]), max_new_tokens=100, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0].tolist()
    answer = session.generate(prompt, max_tokens=100, ignore_end=True, temperature=0, logprobs=1)
    pieces = [piece for piece in answer if piece.token is not None]
    assert answer.tokens == reference[len(prompt) :]
    assert answer.text == tokenizer.decode(answer.tokens, skip_special_tokens=True)
    with torch.no_grad():
        logs = model(torch.tensor([reference])).logits[0].log_softmax(-1)
    expected = [float(logs[len(prompt) - 1 + i, piece.token]) for i, piece in enumerate(pieces)]
    np.testing.assert_allclose([piece.logprob for piece in pieces], expected, atol=1e-4)
    fork = session.fork()
    session.rewind(len(prompt) + 20)
    for one in (session, fork):
        again = one.generate(
            reference[: len(prompt) + 20], max_tokens=80, ignore_end=True, temperature=0
        ).run()
        assert (
            again.tokens == reference[len(prompt) + 20 :]
            and again.statistics.reused_tokens == len(prompt) + 19
        )
    drafted = session.generate(
        prompt, max_tokens=100, ignore_end=True, temperature=0, draft=fork, draft_tokens=4
    ).run()
    done = drafted.statistics
    assert (
        drafted.tokens == answer.tokens and done.accepted_tokens == done.drafted_tokens >= 79
    )  # its own draft
    assert (
        session.generate("Is it?", schema={"type": "array", "items": {"type": "boolean"}, "maxItems": 2})
        .run()
        .finish_reason
        == "stop"
    )
