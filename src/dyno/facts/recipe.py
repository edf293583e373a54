"""A model as asked for: where its files come from, and what is made of them before an engine reads them."""

import hashlib
import re
from typing import Annotated

import msgspec

from dyno.option import Option


class ModelRecipe(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A model of a study's [models.NAME], or of `dyno models`."""

    source: Annotated[
        str,
        Option(
            help="hub:OWNER/NAME@REVISION, file:PATH, or the name of another model of this study"
        ),
    ] = msgspec.field(name="from")
    include: Annotated[
        list[str],
        Option(
            "--include",
            "PATTERN",
            "files to fetch, as *.safetensors (default: all)",
            nargs="+",
        ),
    ] = []
    exclude: Annotated[
        list[str],
        Option("--exclude", "PATTERN", "files to leave out, as original/*", nargs="+"),
    ] = []
    convert: Annotated[
        str | None, Option(help="gguf:F16, gguf:BF16, gguf:F32 or gguf:Q8_0")
    ] = None
    quantize: Annotated[
        str | None,
        Option(
            help="TOOL:SCHEME, as quark:fp8, llm-compressor:fp8-dynamic, llama.cpp:Q4_K_M"
        ),
    ] = None
    kv_cache: Annotated[
        str | None,
        Option(
            "--kv-cache",
            "T",
            "store scales for a KV cache of this type: fp8 (default: none)",
        ),
    ] = None
    ignore: Annotated[
        list[str],
        Option(
            "--ignore",
            "LAYER",
            "layers to leave as they are, by name or re:PATTERN (default: the head)",
            nargs="+",
        ),
    ] = []
    calibration: Annotated[
        str | None,
        Option(
            "--calibration",
            "FILE",
            "text to calibrate with: JSON lines, or plain text (default: generated)",
        ),
    ] = None
    samples: Annotated[
        int | None,
        Option(
            "--samples", "N", "calibration texts (default: the scheme's)", least=1, most=1e6
        ),
    ] = None
    length: Annotated[
        int | None,
        Option(
            "--length",
            "N",
            "tokens of each of them (default: the scheme's)",
            least=1,
            most=1e6,
        ),
    ] = None

    def __post_init__(self) -> None:
        # One spelling of a type: in another case, the same model would be made twice.
        for key in ("convert", "quantize"):
            tool, colon, kind = (getattr(self, key) or "").partition(":")
            if colon and tool in ("gguf", "llama.cpp") and kind != "auto":
                msgspec.structs.force_setattr(self, key, f"{tool}:{kind.upper()}")

    @property
    def base(self) -> "ModelRecipe":
        """Return the recipe of the same files, nothing made of them."""
        return ModelRecipe(source=self.source, include=self.include, exclude=self.exclude)

    @property
    def name(self) -> str:
        """Return its folder's name: the source's last part, what is made of it, and a hash of everything asked for."""
        asked = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:8]
        last = (
            re.sub(r"@.*", "", self.source)
            .rstrip("/")
            .rpartition("/")[2]
            .rpartition(":")[2]
        )
        parts = [
            last,
            *(text.replace(":", "-") for text in (self.convert, self.quantize) if text),
            asked,
        ]
        return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))


class ModelOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which model it was: where it came from, and what was made of it."""

    origin: str  # hub:OWNER/NAME@COMMIT or file:PATH
    size_bytes: int
    convert: str | None = None
    quantize: str | None = None  # TOOL:SCHEME
    kv_cache: str | None = None
    calibration: str | None = None
    tool: str | None = None
    tool_version: str | None = None
    verified: dict[str, str] = {}  # what was checked → what came of it

    def describe(self) -> str:
        """Return hub:OWNER/NAME@1a2b3c4, quark:fp8 by AMD Quark 0.10."""
        source, pinned, commit = self.origin.rpartition("@")
        where = (
            f"{source}@{commit[:7]}"
            if pinned and self.origin.startswith("hub:")
            else self.origin
        )
        parts = [where, *(text for text in (self.convert, self.quantize) if text)]
        if len(parts) == 1:
            return where
        if self.kv_cache:
            parts.append(f"KV cache {self.kv_cache}")
        text = ", ".join(parts)
        if self.tool:
            text += f" by {self.tool}"
            if self.tool_version:
                text += f" {self.tool_version}"
        return text
