"""`dyno completion`: scripts for bash, zsh and fish, made from dyno's own parsers. They run without starting dyno."""

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dyno.cli.parser import Parser
from dyno.engines.kinds import KINDS

FILES, RUNS, ANY = "@files", "@runs", "@any"  # file names; names of runs, and files; a value that can't be listed
_FILES = ("DIR", "FILE", "FILE.toml", "M", "PATH", "STUDY.toml", "WHEEL|URL|GIT")
_RUNS = ("A", "B", "RUN", "RUNS")
_EXAMPLES = """To use it:
  bash   echo 'eval "$(dyno completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(dyno completion zsh)"' >> ~/.zshrc          after compinit
  fish   dyno completion fish > ~/.config/fish/completions/dyno.fish"""


def add(p: argparse.ArgumentParser) -> None:
    p.description = "Print a script that completes commands, flags, their values, runs and file names."
    p.epilog = _EXAMPLES
    p.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help=", ".join(SCRIPTS))
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from dyno.cli.main import parser

    print(SCRIPTS[options.shell](list(completions(parser()))))
    return 0


class NextWord(NamedTuple):
    """A possible next word of a command: a fixed word, or a value."""

    command: str  # 'bench serve'; '': dyno itself
    word: str  # a command or a flag; '': an argument
    about: str
    values: str  # choices with spaces between, or one of FILES, RUNS, ANY; '': none


def completions(parser: Parser) -> Iterator[NextWord]:
    command = parser.prog.partition(" ")[2]
    abouts = {name: inner.description or "" for name, inner in parser.commands().items()}
    for name, about in abouts.items():
        yield NextWord(command, name, _short(about), "")
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        for word in action.option_strings or [""]:
            yield NextWord(command, word, _short(action.help or ""), _values(action))
    for inner in parser.commands().values():
        yield from completions(inner)


def _values(action: argparse.Action) -> str:
    name = str(action.metavar or "")
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return " ".join(map(str, action.choices))
    if name in ("KIND", "KINDS"):
        return " ".join(KINDS)
    return RUNS if name in _RUNS else FILES if action.type is Path or name in _FILES else ANY


def _short(text: str) -> str:
    text = text.replace("%%", "%").partition("\n")[0].partition(" (default")[0].rstrip(".")
    return text if len(text) <= 70 else text[:69].rpartition(" ")[0] + " …"


def _case(name: str, rows: dict[str, list[str]]) -> str:
    """A shell function that prints the lines of its first argument."""
    lines = [f"  {shlex.quote(key)}) cat <<'END'\n" + "\n".join(texts) + "\nEND\n  ;;" for key, texts in rows.items()]
    return "\n".join([f"{name}() {{", '  case "$1" in', *lines, "  esac", "}"])


def _tables(completions: list[NextWord]) -> str:
    """The functions that bash and zsh share."""
    words: dict[str, list[str]] = {}
    values: dict[str, list[str]] = {}
    for e in completions:
        words.setdefault(e.command, [])
        if e.word:
            words[e.command].append(f"{e.word}:{e.about}")
        if e.values:
            values[f"{e.command}|{e.word}"] = e.values.split()
    commands = [c for c in words if c]
    return "\n".join(
        [_case("_dyno_words", words), _case("_dyno_values", values), _case("_dyno_commands", {"": commands})]
    )


_BASH = r"""
_dyno() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" command="" next values i IFS=$'\n'
  if [[ $cur == "=" ]]; then cur=""; elif [[ $prev == "=" ]]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    next="${command:+$command }${COMP_WORDS[i]}"
    _dyno_commands "" | grep -qxF -e "$next" || break
    command="$next"
  done
  [[ $prev == -* ]] && values="$(_dyno_values "$command|$prev")"
  if [[ -z $values && $cur != -* ]]; then
    values="$(_dyno_words "$command" | cut -d: -f1 | grep -v ^-; _dyno_values "$command|")"
  elif [[ -z $values ]]; then
    values="$(_dyno_words "$command" | cut -d: -f1)"
  fi
  COMPREPLY=($(compgen -W "$values" -- "$cur" | grep -v ^@))
  case "$values" in
  *@files* | *@runs*)
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen -f -- "$cur"))
    [[ $values == *@runs* ]] && COMPREPLY+=($(compgen -W "$(command ls runs 2>/dev/null)" -- "$cur"))
    ;;
  esac
  return 0
}
complete -F _dyno dyno llm-dyno"""

_ZSH = r"""
_dyno() {
  local cur="${words[CURRENT]}" prev="${words[CURRENT-1]}" command="" next i
  local -a values described
  if [[ $cur == --*=* ]]; then prev="${cur%%=*}"; compset -P 1 '*='; fi
  for ((i = 2; i < CURRENT; i++)); do
    next="${command:+$command }${words[i]}"
    _dyno_commands "" | grep -qxF -e "$next" || break
    command="$next"
  done
  [[ $prev == -* ]] && values=("${(@f)$(_dyno_values "$command|$prev")}")
  values=(${values:#})
  if (( ! $#values )); then
    described=("${(@f)$(_dyno_words "$command")}")
    [[ $cur == -* ]] && described=(${(M)described:#-*}) || described=(${described:#-*})
    (( $#described )) && _describe dyno described
    [[ $cur == -* ]] && return
    values=("${(@f)$(_dyno_values "$command|")}")
  fi
  [[ ${values[(r)@files]} || ${values[(r)@runs]} ]] && _files
  [[ ${values[(r)@runs]} ]] && values+=(runs/*(N:t))
  compadd -- ${values:#(@*|)}
}
if [[ $funcstack[1] == _dyno ]]; then _dyno "$@"; else compdef _dyno dyno llm-dyno; fi"""

_FISH = """function __dyno_command
    set -l command
    for word in (commandline -opc)[2..-1]
        set -l next (string join -- ' ' $command $word)
        contains -- $next COMMANDS; or break
        set command $next
    end
    echo "$command"
end
function __dyno_at
    test (__dyno_command) = "$argv"
end
complete -c dyno -f
complete -c llm-dyno -w dyno"""


def _fish(completions: list[NextWord]) -> str:
    commands = " ".join(_quoted(c) for c in dict.fromkeys(e.command for e in completions) if c)
    lines = [_FISH.replace("COMMANDS", commands)]
    for e in completions:
        words = ["complete -c dyno", f"-n {_quoted('__dyno_at ' + e.command)}", f"-d {_quoted(e.about)}"]
        if e.word.startswith("--"):
            words.append(f"-l {e.word[2:]}")
        elif e.word.startswith("-"):
            words.append(f"-{'s' if len(e.word) == 2 else 'o'} {e.word[1:]}")
        elif e.word:
            words.append(f"-a {e.word}")
        if e.values in (FILES, RUNS):
            words.append("-rF" if e.word else "-F")
        elif e.values and e.word:
            words.append("-x")
        if e.values == RUNS:
            words.append("-a '(command ls runs 2>/dev/null)'")
        elif e.values and not e.values.startswith("@"):
            words.append(f"-a {_quoted(e.values)}")
        lines.append(" ".join(words))
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {
    "bash": lambda completions: "# bash completion for dyno\n" + _tables(completions) + _BASH,
    "zsh": lambda completions: "#compdef dyno llm-dyno\n" + _tables(completions) + _ZSH,
    "fish": lambda completions: "# fish completion for dyno\n" + _fish(completions),
}
