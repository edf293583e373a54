"""llama-bench's Markdown table: a test on each line, with the settings that weren't left as they are."""

import re
from typing import Final, Literal

from dyno.facts.definition import definition
from dyno.facts.imported import Figure, Row, Setting, Table
from dyno.results.columns import TO_BYTES, TO_ONE
from dyno.results.printed import printed
from dyno.secrets import shown

# Its short titles, as the flags are called that set them.
_NAMES: Final = {
    "backend": "backend", "threads": "threads", "ngl": "ngl", "fa": "flash_attn", "n_batch": "n_batch",
    "n_ubatch": "n_ubatch", "type_k": "type_k", "type_v": "type_v", "sm": "split_mode", "mg": "main_gpu",
    "nkvo": "no_kv_offload", "mmap": "mmap", "ts": "tensor_split", "dev": "devices", "embd": "embeddings",
}  # fmt: skip
_TEST: Final = re.compile(r"((?:pp|tg)\s?\d+(?:\s?\+\s?tg\s?\d+)?)(?:\s*@\s*d\s?(\d+))?")
_ENDED: Final = re.compile(r"(.+?)\s*\(c(\d{1,5})\)")  # llama-benchy's requests at once
_SPEED: Final = re.compile(r"t/s(?:\s*\(([^()]{1,40})\))?", re.I)
_RECKONED: Final = re.compile(r"speed-?up|ratio|diff|delta|change|gain|improve|%")
_TITLE: Final = re.compile(rf"({_TEST.pattern})(?: ?[(\[]?(?:t/s|tok/s|tokens/s)[)\]]?)?")


def rows(table: Table, index: int, file: str, form: Literal["table", "csv"]) -> list[Row] | None:
    titles = [title.strip().lower() for title in table.header]
    if "s_pp t/s" in titles and "s_tg t/s" in titles:
        return _batched(table, titles, index, file, form)
    # 't/s (main)' beside 't/s (PR)'; llama-benchy's 't/s (total)' beside 't/s (req)'.
    speeds = {
        title.strip().lower(): match[1] or "" for title in table.header if (match := _SPEED.fullmatch(title.strip()))
    }
    if "test" not in titles or not speeds:
        return None
    # llama-benchy measures a server, and lays its table out alike.
    tool = (
        "llama-benchy" if any(title.startswith(("ttfr", "peak t/s", "est_ppt")) for title in titles) else "llama-bench"
    )
    found = []
    for cells, line in zip(table.rows, table.lines, strict=False):
        texts = {title: cell.text.strip() for title, cell in zip(titles, cells, strict=False)}
        settings = _settings(texts, line)
        model = shown("model", texts.get("model", ""))
        for title, which in speeds.items():
            speed = printed(texts.get(title, ""))
            if speed is None:
                continue
            bold = any(cell.bold for other, cell in zip(titles, cells, strict=False) if other == title)
            # Of single requests at once it isn't how steady the runs were, but how long each had to wait.
            deviation = None if which.startswith("req") else speed.deviation
            label = ", ".join(filter(None, (model, shown("", which))))
            found.append(
                Row(
                    kind="micro",
                    tool=tool,
                    form=form,
                    file=file,
                    line=line,
                    end=line,
                    figures={
                        "speed": Figure(speed.value, line, speed.half, definition(tool, "speed"), deviation, bold)
                    },
                    settings=settings,
                    label=label,
                    series=label,
                    section=table.section,
                    table=index,
                )
            )
    return found


def _batched(
    table: Table, titles: list[str], index: int, file: str, form: Literal["table", "csv"]
) -> list[Row]:  # fmt: skip
    """llama-batched-bench's: prompts of B sequences, then their tokens, on one line."""
    found = []
    for cells, line in zip(table.rows, table.lines, strict=False):
        numbers = {title: printed(cell.text) for title, cell in zip(titles, cells, strict=False)}
        settings = {}
        for title, name in (("b", "batch_size"), ("n_kv", "n_kv")):
            if (number := numbers.get(title)) is not None:
                settings[name] = Setting(int(number.value), line, "column")
        for test in ("pp", "tg"):
            speed, length = numbers.get(f"s_{test} t/s"), numbers.get(test)
            if speed is None or length is None:
                continue
            found.append(
                Row(
                    kind="micro",
                    tool="llama-batched-bench",
                    form=form,
                    file=file,
                    line=line,
                    end=line,
                    figures={"speed": Figure(speed.value, line, speed.half)},
                    section=table.section,
                    table=index,
                    settings=settings | {"test": Setting(f"{test}{int(length.value)}", line, "column")},
                )
            )
    return found


def _settings(texts: dict[str, str], line: int) -> dict[str, Setting]:
    out: dict[str, Setting] = {}
    for title, text in texts.items():
        number = printed(text)
        if not text or _SPEED.fullmatch(title) or _RECKONED.search(title):
            continue
        if title == "test":
            out |= test(text, line)
        elif title == "size" and number is not None and number.unit in TO_BYTES:
            out["model_bytes"] = Setting(number.value * TO_BYTES[number.unit], line, "column")
        elif title == "params" and (count := _parameters(text)) is not None:
            out["parameters"] = Setting(count, line, "column")
        elif number is not None and not number.unit and number.value == int(number.value):
            out[_NAMES.get(title, title)] = Setting(int(number.value), line, "column")
        elif number is None or (not number.unit and number.deviation is None):  # ttfr (ms) of llama-benchy: measured
            out[_NAMES.get(title, title)] = Setting(shown(title, text), line, "column")
    return out


def test(text: str, line: int, by: Literal["column", "block"] = "column") -> dict[str, Setting]:
    """'pp512 @ d4096' → the test and the depth. Older ones write 'pp 512'."""
    if at_once := _ENDED.fullmatch(text.strip()):
        return test(at_once[1], line, by) | {"concurrency": Setting(int(at_once[2]), line, by)}
    match = _TEST.fullmatch(text.strip())
    if match is None:
        return {"test": Setting(shown("test", text), line, by)}
    found = {"test": Setting(match[1].replace(" ", ""), line, by)}
    return found | ({"depth": Setting(int(match[2]), line, by)} if match[2] else {})


def titled(title: str) -> str | None:
    """The test of a column such as 'pp512' or 'tg128 (t/s)', as people who compare models lay them side by side."""
    match = _TITLE.fullmatch(" ".join(title.lower().split()))
    return match[1] if match else None


def is_test(text: str) -> bool:
    return bool(_TEST.fullmatch(text.strip()))


def _parameters(text: str) -> float | None:
    """'6.74 B' → 6.74e9."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([KMBT])", text, re.I)
    return None if match is None else float(match[1]) * TO_ONE[match[2].lower()]
