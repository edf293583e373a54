"""`dyno completion`: scripts for shells, which shtab makes from dyno's own parsers. They run without starting dyno."""

import argparse
import re
from pathlib import Path
from typing import Any

from dyno.cli.parser import Parser
from dyno.engines.kinds import KINDS

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("DIR", "FILE", "FILE.toml", "M", "PATH", "STUDY.toml", "WHEEL|URL|GIT")
_RUNS = ("A", "B", "RUN", "RUNS")
_EXAMPLES = """To use it:
  bash   echo 'eval "$(dyno completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(dyno completion zsh)"' >> ~/.zshrc          after compinit
  fish   dyno completion fish > ~/.config/fish/completions/dyno.fish"""

# Names of runs, and files: as shtab takes what completes an argument.
_RUNS_AND_FILES = {
    "bash": "_dyno_runs",
    "zsh": "_dyno_runs",
    "fish": "(_dyno_runs)",
    "preamble": {
        "bash": '_dyno_runs() { compgen -W "$(command ls runs 2> /dev/null)" -- "$1"; compgen -f -- "$1"; }',
        "zsh": "_dyno_runs() { local -a runs; runs=(runs/*(N:t)); compadd -a runs; _files; }",
        "fish": "function _dyno_runs; command ls runs 2> /dev/null; __fish_complete_path (commandline -ct); end",
    },
}

# Bash makes three words of --flag=value; shtab's function expects two.
_BASH_EQUALS = """
_dyno() {
  local words=() i cword=$COMP_CWORD
  for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
    if [[ ${COMP_WORDS[i]} == "=" ]]; then
      ((i == COMP_CWORD)) && words+=("")
      ((i < COMP_CWORD)) && cword=$((cword - 1))
    else
      words+=("${COMP_WORDS[i]}")
    fi
  done
  COMP_WORDS=("${words[@]}") COMP_CWORD=$cword
  _shtab_dyno
}
complete -o filenames -F _dyno dyno"""

# A flag with a value, as shtab describes it to zsh: it takes the value as the next word. With = it takes both.
_ZSH_VALUE = re.compile(r'^(  "--[a-z-]+)\[(?=.*\]:)', re.MULTILINE)


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Print a script that completes commands, flags, their values, runs and file names."
    )
    p.epilog = _EXAMPLES
    p.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    import shtab

    from dyno.cli.main import parser

    top = parser()
    for inner in top.walk():
        _say_what_completes(inner)
    script = shtab.complete(top, options.shell)
    if options.shell == "bash":
        script += _BASH_EQUALS
    if options.shell == "zsh":
        script = _ZSH_VALUE.sub(r"\1=[", script)
    print(script)
    return 0


def _say_what_completes(parser: Parser) -> None:
    """Give the parser's arguments what shtab asks of them: choices, or what lists values."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "command"  # its help is hidden, and shtab leaves out what is
        elif action.nargs != 0 and action.choices is None:
            _say_values(action)


def _say_values(action: Any) -> None:
    import shtab

    name = str(action.metavar or "")
    if name in ("KIND", "KINDS"):
        action.choices = tuple(KINDS)
    elif name in _RUNS:
        action.complete = _RUNS_AND_FILES
    elif action.type is Path or name in _FILES:
        action.complete = shtab.FILE
