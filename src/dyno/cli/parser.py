"""The parser of every command: loads its flags when it needs them, shows defaults, explains mistakes in a line."""

import argparse
import importlib
import json
import math
import re
import textwrap
from collections.abc import Generator, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from dyno import secrets
from dyno.errors import UsageError
from dyno.option import opposite, switches

_PLAIN = (  # argparse's messages, and the same in plain words
    (r"invalid int value: (.*)", r"\1 is not a whole number."),
    (r"invalid float value: (.*)", r"\1 is not a number."),
    (r"expected one argument", "a value is missing."),
    (r"expected at least one argument", "a value is missing."),
    (r"ignored explicit argument (.*)", r"takes no value, but \1 was given."),
    (r"not allowed with argument (.*)", r"can't be combined with \1. Give one of them."),
)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps sentences, leaves examples as they are, and adds each flag's default."""

    def _format_usage(
        self, usage: str | None, actions: Any, groups: Any, prefix: str | None
    ) -> str:
        """Name the arguments only: the flags follow below."""
        text = super()._format_usage(
            usage, [a for a in actions if not a.option_strings], [], prefix
        )
        has_flags = usage is None and any(
            a.option_strings and a.dest != "help" for a in actions
        )
        return text.replace(self._prog, f"{self._prog} [flags]", 1) if has_flags else text

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else textwrap.fill(text, width)

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        return (
            text.partition("\n")[2]
            if isinstance(action, argparse._SubParsersAction)
            else text
        )

    def _iter_indented_subactions(
        self, action: argparse.Action
    ) -> Generator[argparse.Action, None, None]:
        """List commands without the line that would name them as one argument, and not further in than flags."""
        yield from (
            action._get_subactions()
            if isinstance(action, argparse._SubParsersAction)
            else ()
        )

    def _get_help_string(self, action: argparse.Action) -> str:
        default = default_text(action)
        return (action.help or "") + (
            f" (default: {default})".replace("%", "%%") if default else ""
        )


def default_text(action: argparse.Action) -> str:
    """Return the default of a flag as a user would type it; '' where there is none, or the help has it."""
    value, text = action.default, action.help or ""
    if (
        value is None
        or isinstance(value, bool)
        or value in (argparse.SUPPRESS, [])
        or not action.option_strings
    ):
        return ""
    if "default: " in text:
        return ""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:g}"
    return str(value)


def _put(table: dict[str, Any], path: list[str], text: str) -> None:
    """Set a value deep in a table. `text`: JSON, or a text as it is."""
    *keys, last = path
    for key in keys:
        if not isinstance(table.get(key), dict):
            table[key] = {}
        table = table[key]
    try:
        table[last] = json.loads(text)
    except ValueError:
        table[last] = text


class Parser(argparse.ArgumentParser):
    """Gets its flags when it parses: a list of the commands needs none."""

    where = ""  # 'module.function' in dyno.cli that adds the flags
    group = False  # it has commands, and does nothing by itself
    # Values of flags that other tools take and dyno doesn't: flag → value → why. '': commands.
    lacks: Mapping[str, Mapping[str, str]] = {}
    # Flags that dyno doesn't know are the engine's: 'always', or where this flag names one.
    passes_on: str | None = None

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter, **rest})

    def fill(self) -> None:
        module, _, function = self.where.partition(".")
        self.where = ""
        if module:
            getattr(importlib.import_module(f"dyno.cli.{module}"), function)(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        names = {word.partition("=")[0] for word in args}
        # of the innermost
        self.set_defaults(parser=self, passes_on=self.passes_on in ("always", *names))
        return super().parse_known_args(
            self._plain_switches(self._whole_objects(args)), namespace
        )

    def _whole_objects(self, words: Sequence[str]) -> list[str]:
        """Read --extra-body.min_tokens 1 as --extra-body '{"min_tokens": 1}', as vLLM does."""
        objects: dict[str, dict[str, Any]] = {}
        out: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            name, dot, path = word.partition(".")
            action = self._option_string_actions.get(name)
            if not dot or action is None or action.metavar != "JSON":
                out.append(word)
                continue
            path, equals, value = path.partition("=")
            if not equals and not rest:
                raise UsageError(f"{name}.{path}: a value is missing.")
            _put(
                objects.setdefault(name, {}),
                path.split("."),
                value if equals else rest.pop(0),
            )
        for name, table in objects.items():
            if any(word.partition("=")[0] == name for word in out):
                raise UsageError(
                    f"{name} is given whole and by its keys. Give one of them."
                )
            out += [name, json.dumps(table)]
        return out

    def _plain_switches(self, words: list[str]) -> Iterator[str]:
        """Read --x False and --x=0 as --no-x: older versions of vLLM take a value."""
        actions = self._option_string_actions
        for word, on in switches(
            words,
            lambda name: isinstance(actions.get(name), argparse.BooleanOptionalAction),
        ):
            yield opposite(word) if on is False else word

    def _get_option_tuples(self, option_string: str) -> Any:
        """Take no abbreviations where an engine's own flag may be how one of dyno's begins: -t is not -tp."""
        return (
            []
            if self.get_default("passes_on")
            else super()._get_option_tuples(option_string)
        )

    def add_subparsers(self, *, required: bool = False, **rest: Any) -> Any:
        """Add the commands. `required`: without a command, its help is printed."""
        if required:
            self.group = True
            self.set_defaults(command=self._print_help)
        return super().add_subparsers(**rest)

    def _print_help(self, options: argparse.Namespace) -> int:
        self.print_help()
        return 0

    def commands(self) -> dict[str, "Parser"]:
        """Return its commands by name."""
        self.fill()
        inner = (
            a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)
        )
        return {name: p for choices in inner for name, p in choices.items()}

    def walk(self) -> Iterator["Parser"]:
        """Yield itself and all commands within."""
        self.fill()
        yield self
        for inner in self.commands().values():
            yield from inner.walk()

    @property
    def flags(self) -> list[str]:
        """Return the flags that its help lists."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return [flag for action in shown for flag in action.option_strings]

    # ---- mistakes ----

    def error(self, message: str) -> Any:
        if match := re.fullmatch(r"argument (\S+): (.*)", message, re.S):
            raise UsageError(self._explain(match[1].replace("/", ", "), match[2]))
        if match := re.fullmatch(r"ambiguous option: (\S+) could match (.*)", message):
            raise UsageError(f"{match[1]} is short for several flags: {match[2]}.")
        if match := re.fullmatch(r"the following arguments are required: (.*)", message):
            raise UsageError(f"`{self.prog}` needs {match[1]}. {self._see_help()}")
        raise UsageError(f"{message}. {self._see_help()}")

    def _explain(self, name: str, message: str) -> str:
        if match := re.match(
            r"invalid choice: '(.*?)'(?:, maybe.*)? \(choose from (.*)\)", message, re.S
        ):
            word, known = match[1], [choice.strip("'") for choice in match[2].split(", ")]
            if why := self.lacks.get(name.partition(",")[0], {}).get(word):
                return f"{name} {word}: {why}"
            near = get_close_matches(word, known, n=1)
            if not name.startswith("-") and self.commands():
                if why := self.lacks.get("", {}).get(word):
                    return f"`{self.prog}` has no command {word!r}: {why}"
                hint = (
                    f"Did you mean `{self.prog} {near[0]}`?"
                    if near
                    else f"Choose from {', '.join(known)}."
                )
                wrong = (
                    f"No engine named {word!r}"
                    if name == "KIND"
                    else f"`{self.prog}` has no command {word!r}"
                )
                return f"{wrong}. {hint}"
            hint = f"Did you mean {near[0]}? It" if near else "It"
            return f"{name}: there is no {word!r}. {hint} takes {', '.join(known)}."
        for pattern, plain in _PLAIN:
            if match := re.fullmatch(pattern, message, re.S):
                return f"{name}: {match.expand(plain)}"
        return f"{name}: {message.rstrip('.')}."

    def unrecognized(self, words: list[str], top: "Parser") -> str:
        """Explain words that no flag or argument of this command takes."""
        flags = [word for word in words if word.startswith("-") and len(word) > 1]
        wrong = dict.fromkeys(flag.partition("=")[0] for flag in flags)
        if not wrong:
            return f"`{self.prog}` doesn't take {' '.join(secrets.without((), words))}. {self._see_help()}"
        return "\n".join(self._unknown_flag(flag, top) for flag in wrong)

    def _unknown_flag(self, wrong: str, top: "Parser") -> str:
        if near := [
            f for f in get_close_matches(wrong, self.flags, n=1, cutoff=0.75) if f != wrong
        ]:
            return f"`{self.prog}` has no flag {wrong}. Did you mean {near[0]}?"
        owners = [f"`{p.prog}`" for p in top.walk() if wrong in p.flags]
        if owners:
            more = f" and {len(owners) - 3} more" if len(owners) > 3 else ""
            return (
                f"{wrong} is a flag of {', '.join(owners[:3])}{more}, not of `{self.prog}`."
            )
        return f"`{self.prog}` has no flag {wrong}. {self._see_help()}"

    def _see_help(self) -> str:
        return f"See `{self.prog} --help`."
