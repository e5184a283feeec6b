# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a shell. Out: a script that completes the commands, options and choices of the parser.
"""Print a shell script that completes torchette's commands

The script completes commands, options and their choices, and file names. It does not run torchette, so it is fast.
Generate it again after an update.

examples:
  source <(torchette completion bash)                                          in ~/.bashrc
  source <(torchette completion zsh)                                           in ~/.zshrc, after compinit
  torchette completion fish > ~/.config/fish/completions/torchette.fish
"""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from torchette.cli import DONE
from torchette.cli._parser import HelpFormatter


class Command(NamedTuple):
    """The words that can follow a command."""

    name: str  # such as "llm compile"; empty for torchette itself
    words: dict[str, str]  # commands and choices of arguments, with their help
    options: dict[str, str]  # with their help
    values: dict[str, list[str]]  # the choices of each option with a value; empty for files and texts


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="the shell that runs the script")


def run(options: argparse.Namespace) -> int:
    from torchette import cli

    print(SCRIPTS[options.shell](list(commands(cli._parser()))))
    return DONE


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[Command]:
    """Yields every command of a parser, starting with the parser itself."""
    command = Command(name, {}, {}, {})
    nested = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            command.words.update({one.dest: one.help or "" for one in action._choices_actions})
            nested += [(action.choices[one], f"{name} {one}".strip()) for one in command.words]
            continue
        text = textwrap.shorten(HelpFormatter(parser.prog)._expand_help(action), 80) if action.help else ""
        choices = [str(choice) for choice in getattr(action, "completions", action.choices) or ()]
        if not action.option_strings:
            command.words.update(dict.fromkeys(choices, text))
        for option in action.option_strings:
            command.options[option] = text
            if action.nargs != 0:
                command.values[option] = choices
    yield command
    for child, path in nested:
        yield from commands(child, path)


def _steps(known: list[Command]) -> list[tuple[str, str]]:
    """Returns (the current command and the next word, the command with that word)."""
    return [("{}/{}".format(*one.name.rpartition(" ")[::2]), one.name) for one in known if one.name]


def _values(known: list[Command]) -> list[tuple[str, list[str]]]:
    """Returns (the command and its option, the choices of the option)."""
    return [(f"{one.name}:{option}", choices) for one in known for option, choices in one.values.items()]


def _bash(known: list[Command]) -> str:
    steps = "\n".join(f'      "{step}") at="{name}" ;;' for step, name in _steps(known))
    values = "\n".join(f'    "{key}") words="{" ".join(choices)}" ;;' for key, choices in _values(known))
    options = "\n".join(f'        "{one.name}") words="{" ".join(one.options)}" ;;' for one in known)
    words = "\n".join(f'        "{one.name}") words="{" ".join(one.words)}" ;;' for one in known if one.words)
    return f"""\
_torchette() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} at="" word words=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$at/$word" in
{steps}
    esac
  done
  if [[ $cur == "=" ]]; then cur=""; elif [[ $prev == "=" ]]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  case "$at:$prev" in
{values}
    *)
      if [[ $cur == -* ]]; then
        case "$at" in
{options}
        esac
      else
        case "$at" in
{words}
        esac
      fi ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _torchette torchette"""


def _zsh(known: list[Command]) -> str:
    def described(words: dict[str, str]) -> str:
        return " ".join(shlex.quote(f"{word}:{text}") for word, text in words.items())

    steps = "\n".join(f'      ("{step}") at="{name}" ;;' for step, name in _steps(known))
    values = "\n".join(f'    ("{key}") found=({" ".join(choices)}) ;;' for key, choices in _values(known))
    options = "\n".join(f'        ("{one.name}") found=({described(one.options)}) ;;' for one in known)
    words = "\n".join(
        f'        ("{one.name}") found=({described(one.words)}) ;;' for one in known if one.words
    )
    return f"""\
#compdef torchette
_torchette() {{
  local at="" word previous=${{words[CURRENT-1]}}
  local -a found
  for word in ${{words[2,CURRENT-1]}}; do
    case "$at/$word" in
{steps}
    esac
  done
  case "$at:$previous" in
{values}
    (*)
      if [[ $PREFIX == -* ]]; then
        case "$at" in
{options}
        esac
      else
        case "$at" in
{words}
        esac
      fi ;;
  esac
  if (( $#found )); then _describe torchette found; else _files; fi
}}
if [[ $funcstack[1] == _torchette ]]; then _torchette "$@"; else compdef _torchette torchette; fi"""


def _fish(known: list[Command]) -> str:
    lines = []
    for one in known:
        at = f"complete -c torchette -n '__torchette_at \"{one.name}\"'"
        lines += [f"{at} -f -a {word} -d {shlex.quote(text)}" for word, text in one.words.items()]
        for option, text in one.options.items():
            choices = one.values.get(option)
            kind = "" if choices is None else f" -x -a {shlex.quote(' '.join(choices))}" if choices else " -r"
            named = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"{at} {named}{kind} -d {shlex.quote(text)}")
    steps = "\n".join(
        f"            case '{step}'\n                set at '{name}'" for step, name in _steps(known)
    )
    return f"""\
function __torchette_at
    set -l at ''
    for word in (commandline -opc)[2..-1]
        switch "$at/$word"
{steps}
        end
    end
    test "$at" = "$argv[1]"
end
""" + "\n".join(lines)


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
