"""Renders a chat template: a process of its own, because a template is code from a model's files.

Run by its path, without dyno's packages and without the user's environment. The first line that it reads has the
template and its variables, each further line the messages of a prompt; each is answered by one line. Jinja's sandbox
keeps a template from Python's objects, and the limits below from the machine's time and memory.
"""

import datetime
import json
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MEMORY = 1 << 30
_LONGER = 1 << 20  # characters that a template may add


class _Generation(Extension):
    """`{% generation %}` marks answers for training; the text is the same without it."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(
            ("name:endgeneration",), drop_needle=True
        )
        return body


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _as_json(value: Any, indent: int | None = None, **how: Any) -> str:
    """Write JSON as transformers does: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **how)


def _limit() -> None:
    for kind, most in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # not every system has them all
            resource.setrlimit(kind, (most, most))


def _reply(text: str = "", error: str = "") -> None:
    print(json.dumps({"text": text, "error": error}), flush=True)


def main() -> None:
    first = json.loads(sys.stdin.readline())
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(
        form
    )
    _limit()
    # without a handler: it ends the process, whatever that is at
    signal.alarm(first["seconds"])
    try:
        template = environment.from_string(first["template"])
    except Exception as e:  # a template may fail in any way: the parent says how
        _reply(error=f"{type(e).__name__}: {e}")
        return
    for line in sys.stdin:
        signal.alarm(first["seconds"])
        try:
            text = template.render(
                messages=json.loads(line), add_generation_prompt=True, **first["variables"]
            )
        except Exception as e:  # likewise
            _reply(error=f"{type(e).__name__}: {e}")
            continue
        finally:
            signal.alarm(0)
        if len(text) > len(line) + _LONGER:
            _reply(error=f"it made {len(text):,} characters of {len(line):,}")
        else:
            _reply(text)


if __name__ == "__main__":
    main()
