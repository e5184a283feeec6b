# SPDX-License-Identifier: BSD-3-Clause
# The table of generation options: Python and C++ read the same rows, and a new option needs only a row to be available in every
# language.

from __future__ import annotations

import ctypes
import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.building import BUILD, CC, CXX, ROOT, built, run
from torchette.cli import _llm
from torchette.errors import InputError
from torchette.llm import options
from torchette.llm.options import OPTIONS

TABLE = ROOT / "torchette/llm/engine/options.def"
NEW = (
    'TORCHETTE_OPTION(sampling, Number, typical_p, 0.5, above, 0, 1, "typ_p typicality", "a row of a test")\n'
)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_options_accept_only_their_range(option: options.Option) -> None:
    if option.type in ("Integer", "Seed", "Number"):
        step = 1 if option.type != "Number" else 1e-3
        lowest = option.lowest + step if option.excludes_lowest else option.lowest
        beyond = option.lowest if option.excludes_lowest else option.lowest - step
        good, bad = [lowest, option.highest], [beyond, option.highest + 1, "1", True, math.nan]
        if step == 1:
            good, bad = [int(value) for value in good], [*bad, 0.5]
    else:
        values = {
            "Flag": [True, False],
            "Text": ["x", ""],
            "Texts": ["x", ["a", "b"], ()],
            "Schema": [{}, True, "{}"],
        }
        wrong = {"Flag": [1, "true"], "Text": [1, ["x"]], "Texts": [1, ["x", 1]], "Schema": [1, [1]]}
        good = values.get(option.type, [{}, {1: 2, np.int64(3): -math.inf}])
        bad = wrong.get(option.type, [{-1: 0}, {"1": 0}, {1: "x"}, {1: math.inf}, {1: math.nan}, [1]])
    spellings = [option.name, *option.aliases]
    spellings += [re.sub("_([a-z])", lambda c: c[1].upper(), name) for name in spellings]
    for name in {*spellings, option.name.replace("_", "-")}:
        for value in good:
            assert options.checked({name: value}).keys() == {option.name}
    for value in bad:
        with pytest.raises(InputError, match=f"^(the keys of )?{option.name}(\\[.*\\])? must be "):
            options.checked({option.name: value})
    assert options.checked({option.name: None}) == {}
    if option.default is not None:
        assert option.checked(option.default) == option.default


def test_values_become_built_in_types() -> None:
    options_in = {
        "maxTokens": np.int32(3),
        "temp": np.float32(0.5),
        "stop": "x",
        "logitBias": {np.int64(7): 1},
    }
    values = options.checked(options_in)
    assert values == {"max_new_tokens": 3, "temperature": 0.5, "stop": ["x"], "logit_bias": {7: 1.0}}
    assert [type(value) for value in values.values()] == [int, float, list, dict]
    assert (
        options.as_json({"logit_bias": {7: -math.inf}, "top_k": 1})
        == '{"logit_bias": {"7": -1e+300}, "top_k": 1}'
    )


def test_unknown_names_are_errors() -> None:
    with pytest.raises(InputError, match="unknown generation option 'top_pp'") as caught:
        options.checked({"top_pp": 1})
    assert "did you mean top_p?" in str(caught.value)
    with pytest.raises(InputError, match="options: echo, ignore_eos"):
        options.checked({"zzzzzzz": 1})
    with pytest.raises(InputError, match="max_tokens and maxNewTokens are the same option"):
        options.checked({"max_tokens": 1, "maxNewTokens": 1})


def test_spellings_are_unique() -> None:
    spellings = [name for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(spellings) == len(set(spellings)) and all(
        re.fullmatch("[a-z][a-z_]*", name) for name in spellings
    )


def test_unreadable_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        options.rows(TABLE.read_text().replace("from, 0, 127", "0, 127", 1))


def test_the_page_has_every_option() -> None:
    page = options.page()
    assert all(f"| `{option.name}` |" in page and option.description in page for option in OPTIONS)


def test_a_function_gets_the_options_in_its_signature() -> None:
    @options.described("sampling", "ending")
    def generate(prompt: str, *, draft: object = None, **kwargs: object) -> None:
        """Generates.

        Args:
            prompt: a text.
            {options}

        Raises:
            InputError: an option is wrong.
        """

    named = {option.name for option in OPTIONS if option.group in ("sampling", "ending")}
    parameters = inspect.signature(generate).parameters
    assert parameters.keys() == {"prompt", "draft"} | named and "grammar" not in parameters
    assert str(parameters["top_p"]) == "top_p: 'float | None' = None"
    text = inspect.getdoc(generate) or ""
    assert (
        "    top_p: draw from the fewest tokens that have this probability together (a number above 0 and at most 1).\n"
        in text
    )
    assert "{options}" not in text and "\nRaises:\n" in text
    generate("x", top_p=1)


def test_programs_have_flags_for_options(tmp_path: Path) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    _llm.option_arguments(parser, *{option.group for option in OPTIONS})
    (tmp_path / "schema").write_text('{"type": "array"}')
    (tmp_path / "grammar").write_text('root ::= "x"')
    words = [
        "--top-p",
        "0.5",
        "--max-tokens",
        "7",
        "--no-echo",
        "--slide",
        "--stop",
        "a",
        "--stop",
        "b",
        "--logit-bias",
        "3=-inf",
    ]
    words += [
        "--logit-bias",
        "4=2",
        "--schema",
        str(tmp_path / "schema"),
        "--gbnf",
        str(tmp_path / "grammar"),
    ]
    assert _llm.given_options(parser.parse_args(words)) == {
        "top_p": 0.5, "max_new_tokens": 7, "echo": False, "slide": True, "stop": ["a", "b"],
        "logit_bias": {3: -math.inf, 4: 2.0}, "schema": {"type": "array"}, "grammar": 'root ::= "x"',
    }  # fmt: skip
    assert _llm.given_options(parser.parse_args([])) == {}
    assert all(f"--{option.name.replace('_', '-')} " in parser.format_help() for option in OPTIONS)


@pytest.mark.parametrize(
    "words",
    [["--top-p", "0"], ["--top-k", "0.5"], ["--seed", "-1"], ["--temp", "hot"], ["--logit-bias", "3"]],
)
def test_flags_check_their_values(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    _llm.option_arguments(parser, "sampling")
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert ": must be " in capsys.readouterr().err


PROGRAM = r"""
#include <cstdio>
#include "torchette/llm/engine/c_api.h"
#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/options.h"
#include "torchette/llm/text/json.h"
using namespace torchette;
using namespace torchette::extension::llm;
int main() {
  GenerationConfig config;
  torchette_llm_config_t c = {};
  c.typical_p = 0.25f;
  const Error read = read_config(std::string_view(R"({"typP": 0.75})"), &config);
  const Error good = check(config);
  const float value = config.typical_p;
  config.typical_p = 2;
  const Error bad = check(config);
  read_sampling(*Json::parse(R"({"typical_p": 0.25, "seed": 7, "top_k": -1, "top_p": "x", "echo": 0})"), &config);
  const Option* option = find_option("typicality");
  std::printf("%d %d %d %g %g %g %s %s\n", static_cast<int>(read), static_cast<int>(good), static_cast<int>(bad),
              static_cast<double>(value), static_cast<double>(config.typical_p), static_cast<double>(c.typical_p),
              option->name, accepted_values(*option).c_str());
  std::printf("%d %d %g\n", static_cast<int>(config.seed), config.top_k, static_cast<double>(config.top_p));
}
"""


def test_a_new_option_is_one_row(tmp_path: Path) -> None:
    """A copy of the table with one more row reaches C++, its check, JSON, generation_config.json, C and Python."""
    built("torchette_llm")
    text = TABLE.read_text().replace("#undef TORCHETTE_OPTION", f"{NEW}#undef TORCHETTE_OPTION")
    folder = tmp_path / "torchette/llm/engine"
    folder.mkdir(parents=True)
    (folder / "options.def").write_text(text)
    assert options.rows(text)[:-1] == OPTIONS and options.rows(text)[-1].aliases == ("typ_p", "typicality")
    (tmp_path / "main.cpp").write_text(PROGRAM)
    engine = ROOT / "torchette/llm/engine"
    flags = (
        "-std=c++17",
        "-fno-exceptions",
        "-fno-rtti",
        "-I",
        tmp_path,
        "-I",
        ROOT,
        "-I",
        BUILD / "generated",
    )
    sources = [tmp_path / "main.cpp", engine / "options.cpp", engine / "config_json.cpp"]
    libraries = [BUILD / "libtorchette_llm.a", BUILD / "libtorchette.a"]
    run(CXX, *flags, *sources, *libraries, "-o", tmp_path / "main")
    done = run(tmp_path / "main")
    assert done.stdout == "0 0 18 0.75 0.25 0.25 typical_p a number above 0 and at most 1\n0 0 1\n"
    assert "typical_p must be a number above 0 and at most 1, got 2" in done.stderr


# Options that are also named outside of the sampler: unset values of clients, defaults of transformers, documented examples.
SPECIAL = {"temperature", "top_k", "top_p", "repetition_penalty"}


@pytest.mark.parametrize(
    "option",
    [one for one in OPTIONS if one.is_sampling_number and one.name not in SPECIAL],
    ids=lambda one: one.name,
)
def test_numeric_sampling_option_needs_three_files(option: options.Option) -> None:
    """The row, the sampler, and at most one page."""
    camel = re.sub("_([a-z])", lambda c: c[1].upper(), option.name)
    name = re.compile(rf"\b({option.name}|{camel})\b".encode())
    kinds = {".py", ".cpp", ".h", ".def", ".js", ".mjs", ".html", ".java", ".md", ".txt", ".cmake"}
    files = [
        path.relative_to(ROOT).as_posix()
        for folder in ("torchette", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds and path.is_file() and name.search(path.read_bytes())
    ]
    code = ["torchette/llm/engine/options.def", "torchette/llm/engine/sampler.cpp"]
    assert [file for file in sorted(files) if file.startswith("torchette")] == code
    assert len(files) <= 3, files


def test_c99_reads_the_structure(tmp_path: Path) -> None:
    """Without warnings, with the size that ctypes computes from the same table."""
    from tests.llm.languages.c_api import Config

    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "torchette/llm/engine/c_api.h"\n'
        "int main(void) { torchette_llm_config_t c; c.num_stop = 0; "
        'printf("%zu\\n", sizeof(c) + c.num_stop); return 0; }\n'
    )
    strict = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", ROOT)
    run(CC, *strict, tmp_path / "main.c", "-o", tmp_path / "main")
    assert int(run(tmp_path / "main").stdout) == ctypes.sizeof(Config)
