"""Text to calibrate a quantizer with: a file of the user's, or dyno's own prose with a fixed seed."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from dyno import files
from dyno.errors import UsageError, WorkloadError
from dyno.facts.recipe import ModelRecipe
from dyno.models.schemes import Scheme
from dyno.numbers import many
from dyno.workload import synthetic, tokenizer

SEED = 0


class CalibrationTexts(NamedTuple):
    lines: bytes  # JSON, one {"text": …} or {"messages": […]} each
    about: str


def texts(recipe: ModelRecipe, scheme: Scheme, source: Path) -> CalibrationTexts:
    count, length = recipe.samples or scheme.samples, recipe.length or scheme.length
    if recipe.calibration:
        rows = _read_rows(Path(recipe.calibration).expanduser())[:count]
        origin = recipe.calibration
    else:
        rows = [{"text": text} for text in _generated(source, count, length)]
        origin = f"generated with seed {SEED}"
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    digest = hashlib.sha256(lines).hexdigest()
    return CalibrationTexts(
        lines,
        f"{many(len(rows), 'text')} of up to {length:,} tokens, {origin}, sha256 {digest}",
    )


def plain(path: Path) -> str:
    """Return a file's texts as one, without a chat template."""
    texts = []
    for row in _read_rows(path.expanduser()):
        texts.append(
            row.get("text") or "\n".join(message["content"] for message in row["messages"])
        )
    return "\n\n".join(texts)


def _generated(source: Path, count: int, length: int) -> list[str]:
    try:
        counts: tokenizer.Tokenizer = tokenizer.local(str(source))
    except WorkloadError:  # some models have no tokenizer.json
        counts = tokenizer.ApproximateTokenizer()
    return [synthetic.synthesize(counts, SEED, i, length)[0] for i in range(count)]


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = files.read(path, 1 << 30).decode()
    except OSError as e:
        raise UsageError(
            f"The calibration text {path} can't be read: {e.strerror}."
        ) from None
    except ValueError as e:
        raise UsageError(f"The calibration text {path} is not UTF-8 text: {e}.") from None
    if text.lstrip().startswith("{"):
        rows = [
            _row(path, i, line)
            for i, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    else:
        rows = [{"text": part.strip()} for part in text.split("\n\n") if part.strip()]
    if not rows:
        raise UsageError(f"The calibration text {path} is empty.")
    return rows


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if isinstance(text := row.get("text") or row.get("prompt"), str):
            return {"text": text}
        if all(
            isinstance(m["role"], str) and isinstance(m["content"], str)
            for m in row["messages"]
        ):
            return {"messages": row["messages"]}
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    raise UsageError(
        f'Line {number} of {path} has no text. Write {{"text": …}}, {{"prompt": …}} or {{"messages": …}}.'
    )
