"""A model's chat template: found beside its tokenizer or asked of its server, and rendered in a process of its own."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno import files
from dyno.errors import TargetError, WorkloadError
from dyno.http import Client
from dyno.option import setting_name
from dyno.workload.hub_file import hub_file

_LARGEST = 16 << 20  # bytes of a template or a configuration
SECONDS = 5  # for a prompt; a template takes less than a millisecond
_SANDBOX = Path(__file__).with_name("template_sandbox.py")
_SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")  # nothing secret


class ChatTemplate:
    """Renders messages as the text that a model is prompted with. `close` ends its process."""

    def __init__(self, text: str, variables: Mapping[str, Any] | None = None) -> None:
        self.text, self._variables = text, dict(variables or {})
        self._process: subprocess.Popen[str] | None = None

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        process = self._process or self._start()
        try:
            reply = self._ask(process, json.dumps(list(messages)))
        except (OSError, ValueError):  # it has ended: by a limit of its own
            self.close()
            raise _refused("it took too long or too much memory") from None
        if reply["error"]:
            raise _refused(reply["error"])
        return reply["text"]

    def set(self, variables: Mapping[str, Any]) -> None:
        """Set variables of the template, before the first prompt is rendered."""
        self._variables |= variables

    def _start(self) -> "subprocess.Popen[str]":
        environment = {
            name: value for name in _ENVIRONMENT if (value := os.environ.get(name))
        }
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", str(_SANDBOX)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=environment,
            start_new_session=True,
        )
        with contextlib.suppress(BrokenPipeError):
            first = {
                "template": self.text,
                "variables": self._variables,
                "seconds": SECONDS,
            }
            _write(process, json.dumps(first))
        return process

    def _ask(self, process: "subprocess.Popen[str]", line: str) -> dict[str, str]:
        # it refused the template, and has said why
        with contextlib.suppress(BrokenPipeError):
            _write(process, line)
        assert process.stdout is not None
        reply: dict[str, str] = json.loads(process.stdout.readline())
        return reply

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):  # what was not read is lost
                    assert pipe is not None
                    pipe.close()
            self._process.wait()
            self._process = None


def _write(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _refused(why: str) -> WorkloadError:
    return WorkloadError(
        f"The model's chat template can't be rendered: {why[:300].strip(' :.')}. "
        f"{setting_name('--skip-chat-template')} sends prompts as they are; with {setting_name('--backend')} "
        "openai-chat the server applies its own template."
    )


def beside(folder: Path) -> ChatTemplate | None:
    """Return the template of a model's folder; None: it has none that can be read."""
    config: dict[str, Any] = {}
    with contextlib.suppress(OSError, *files.BROKEN):
        config = msgspec.json.decode(
            files.read(folder / _CONFIG, files.TEXT), type=dict[str, Any]
        )
    text = _named(config.get("chat_template"))
    with contextlib.suppress(OSError, *files.BROKEN):
        text = files.read(folder / _TEMPLATE, files.TEXT).decode()
    return ChatTemplate(text, _special(config)) if text else None


def of_server(client: Client) -> ChatTemplate | None:
    """Return the template that llama.cpp's server reports; others don't."""
    with contextlib.suppress(TargetError):
        status, answer = client.call("/props")
        if (
            status == 200
            and isinstance(answer, dict)
            and isinstance(text := answer.get("chat_template"), str)
            and text
        ):
            return ChatTemplate(text, _special(answer))
    return None


def of_hub(name: str, fetch: bool = True) -> ChatTemplate | None:
    """Return the template of a model on the Hub; None: it has none, or it is neither here nor can it be fetched."""
    from huggingface_hub import try_to_load_from_cache

    folders: dict[Path, None] = {}
    for file in (_CONFIG, _TEMPLATE):
        # no network, no such file, no right to read it: then there is none
        with contextlib.suppress(Exception):
            cached = try_to_load_from_cache(name, file)
            if isinstance(cached, str) or fetch:
                folders[hub_file(name, file, _LARGEST).parent] = None
    return next((template for folder in folders if (template := beside(folder))), None)


def _named(template: Any) -> str:
    """Return the template; of several, each as {name, template}, the default one."""
    if isinstance(template, list):
        by_name = {
            t.get("name"): t.get("template") for t in template if isinstance(t, dict)
        }
        template = by_name.get("default")
    return template if isinstance(template, str) else ""


def _special(config: dict[str, Any]) -> dict[str, str]:
    """Return the special tokens that templates write: as text, or as {content}."""
    out = {}
    for name in _SPECIAL:
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            out[name] = token
    return out
