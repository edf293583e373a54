"""One small file of a model on the Hub: from the Hub's cache, from dyno's own, or fetched with bounds.

huggingface_hub's own download names the file by what the Hub answers (its ETag), and so writes wherever a mirror likes
(decisions/0027-outside.md).
"""

import os
import time
from pathlib import Path
from typing import Any

from dyno.errors import WorkloadError
from dyno.numbers import human_bytes
from dyno.outside import OutsideName, TooMuch, TooSlow, bounded

_TIMEOUT_S, _ALL_S = 30.0, 300.0  # without a byte; for all of it


def hub_file(name: str, file: str, most: int) -> Path:
    """Return the path of a file of OWNER/NAME, up to `most` bytes. Raises what huggingface_hub raises."""
    from huggingface_hub import try_to_load_from_cache

    # The cache first: without a network the Hub's client tries for half a minute.
    if isinstance(cached := try_to_load_from_cache(name, file), str):
        return Path(cached)
    folder = OutsideName.single(f"models--{name.replace('/', '--')}").below(_cache())
    path = OutsideName.single(file).below(folder)
    if not path.is_file():
        data = _fetched(name, file, most)
        folder.mkdir(parents=True, exist_ok=True)
        partial = OutsideName.single(f"{file}.{os.getpid()}.part").below(folder)
        partial.write_bytes(data)
        partial.replace(path)
    return path


def _fetched(name: str, file: str, most: int) -> bytes:
    from huggingface_hub import errors, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    # of the HTTP library that this huggingface_hub uses
    http_error: Any = errors.HfHubHTTPError.__bases__[0]
    asked: dict[str, Any] = {
        "headers": build_hf_headers(),
        "timeout": _TIMEOUT_S,
        "follow_redirects": True,
    }
    try:
        with get_session().stream("GET", hf_hub_url(name, file), **asked) as response:
            hf_raise_for_status(response)
            return bounded(response.iter_bytes(), most, time.monotonic() + _ALL_S)
    except TooMuch:
        raise WorkloadError(
            f"{file} of {name} is larger than {human_bytes(most)}, the limit."
        ) from None
    except TooSlow:
        raise WorkloadError(
            f"{file} of {name} wasn't fetched within {_ALL_S:.0f} s. Try again."
        ) from None
    except errors.HfHubHTTPError:
        raise
    except http_error as e:
        raise errors.LocalEntryNotFoundError(str(e)) from None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dyno" / "hub"
