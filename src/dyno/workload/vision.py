"""How many tokens an image takes in a prompt, by the model's rule. The only list of these rules.

A rule counts all tokens that an image adds, with the marks around its patches.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

# Settings of a model's image processor, by the names in preprocessor_config.json.
Settings = Mapping[str, Any]


class VisionRule(NamedTuple):
    name: str
    model_types: tuple[str, ...]  # in config.json
    names: str  # of models, as a pattern
    tokens: Callable[[int, int, Settings], int]  # from width and height
    source: str


def _number(settings: Settings, *names: str, default: int) -> int:
    for name in names:
        value = settings.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return default


def _edges(settings: Settings, least: int, most: int) -> tuple[int, int]:
    """Return the fewest and the most pixels of an image after resizing."""
    size = settings.get("size")
    size = size if isinstance(size, dict) else {}
    low = _number(settings, "min_pixels", default=0) or _number(
        size, "shortest_edge", "min_pixels", default=least
    )
    high = _number(settings, "max_pixels", default=0) or _number(
        size, "longest_edge", "max_pixels", default=most
    )
    return low, high


def _resized(width: int, height: int, factor: int, low: int, high: int) -> tuple[int, int]:
    """Return both sides as multiples of a factor, with a number of pixels within bounds (Qwen's smart_resize)."""
    w, h = (max(factor, round(side / factor) * factor) for side in (width, height))
    if w * h > high:
        scale = math.sqrt(width * height / high)
        w, h = (
            max(factor, math.floor(side / scale / factor) * factor)
            for side in (width, height)
        )
    elif w * h < low:
        scale = math.sqrt(low / (width * height))
        w, h = (math.ceil(side * scale / factor) * factor for side in (width, height))
    return w, h


def _qwen(patch: int, least: int, most: int) -> Callable[[int, int, Settings], int]:
    def tokens(width: int, height: int, settings: Settings) -> int:
        factor = _number(settings, "patch_size", default=patch) * _number(
            settings, "merge_size", default=2
        )
        w, h = _resized(width, height, factor, *_edges(settings, least, most))
        return (w // factor) * (h // factor) + 2  # vision_start, vision_end

    return tokens


def _fixed(count: int) -> Callable[[int, int, Settings], int]:
    def tokens(width: int, height: int, settings: Settings) -> int:
        return count

    return tokens


def _pixtral(patch: int, longest: int) -> Callable[[int, int, Settings], int]:
    def tokens(width: int, height: int, settings: Settings) -> int:
        ratio = max(width / longest, height / longest)
        if ratio > 1:
            width, height = round(width / ratio), round(height / ratio)
        across, down = -(-width // patch), -(-height // patch)
        return down * (across + 1)  # a mark ends each row

    return tokens


def _tiles(most: int) -> Iterator[tuple[int, int]]:
    for count in range(1, most + 1):
        yield from ((i, count // i) for i in range(1, count + 1) if count % i == 0)


def _internvl(width: int, height: int, settings: Settings) -> int:
    side = 448
    ratio = width / height
    best, nearest = (1, 1), math.inf
    for across, down in _tiles(_number(settings, "max_dynamic_patch", default=12)):
        distance = abs(ratio - across / down)
        larger = width * height > 0.5 * side * side * across * down
        if distance < nearest or (distance == nearest and larger):
            best, nearest = (across, down), distance
    tiles = best[0] * best[1]
    return 256 * (tiles + (tiles > 1)) + 2  # a thumbnail beside several tiles; img, /img


# In the order in which names are tried.
RULES = (
    VisionRule(
        "qwen2-vl",
        ("qwen2_vl", "qwen2_5_vl"),
        r"qwen2(\.5)?-?(vl|omni)",
        _qwen(14, 56 * 56, 12_845_056),
        "transformers, Qwen2VLImageProcessor: patches of 14, merged 2 × 2; pixels by preprocessor_config.json "
        "of Qwen2.5-VL-7B",
    ),
    VisionRule(
        "qwen3-vl",
        ("qwen3_vl", "qwen3_vl_moe"),
        r"qwen3(\.5)?-?vl",
        _qwen(16, 65_536, 16_777_216),
        "transformers, Qwen3-VL: patches of 16, merged 2 × 2; pixels by preprocessor_config.json of "
        "Qwen3-VL-8B",
    ),
    VisionRule(
        "llava-1.5",
        ("llava",),
        r"llava-(v?1\.5|1\.5)",
        _fixed(576),
        "CLIP ViT-L/14 at 336 pixels: 24 × 24 patches, whatever the image",
    ),
    VisionRule(
        "gemma-3",
        ("gemma3",),
        r"gemma-?3(?!n)",
        _fixed(260),
        "transformers, Gemma3Processor: 256 tokens, a mark and an empty line on each side",
    ),
    VisionRule(
        "paligemma-224",
        (),
        r"paligemma2?-.*224",
        _fixed(256),
        "SigLIP at 224 pixels: 16 × 16 patches",
    ),
    VisionRule(
        "paligemma-448",
        (),
        r"paligemma2?-.*448",
        _fixed(1024),
        "SigLIP at 448 pixels: 32 × 32 patches",
    ),
    VisionRule(
        "pixtral",
        ("pixtral",),
        r"pixtral",
        _pixtral(16, 1024),
        "mistral-common, ImageEncoder: patches of 16, sides up to 1,024, a mark for each row",
    ),
    VisionRule(
        "mistral-3",
        ("mistral3",),
        r"(mistral-small-3\.[12]|ministral-3)",
        _pixtral(28, 1540),
        "mistral-common, ImageEncoder: patches of 14, merged 2 × 2, sides up to 1,540, a mark for each row",
    ),
    VisionRule(
        "internvl",
        ("internvl_chat", "internvl"),
        r"internvl(2|3)",
        _internvl,
        "InternVL's dynamic_preprocess: up to 12 tiles of 448 pixels with 256 tokens, and a thumbnail",
    ),
)
_BY_NAME = {rule.name: rule for rule in RULES}
AUTO, NONE = "auto", "none"


class ImageTokens(NamedTuple):
    """The rule of one model."""

    name: str
    of_size: Callable[[int, int], int]  # width, height


def problem(text: str) -> str | None:
    """Return why a text names no rule."""
    if text in (AUTO, NONE) or text in _BY_NAME or (text.isdigit() and int(text) > 0):
        return None
    return (
        f"must be auto, none, a number of tokens per image, or one of {', '.join(_BY_NAME)}"
    )


def rule_of(
    wanted: str,
    model: str,
    config: Settings | None = None,
    processor: Settings | None = None,
) -> ImageTokens | None:
    """Return the rule for a model; None: it is unknown. `wanted`: as the user gives it; `config` and `processor`: the
    model's config.json and preprocessor_config.json, where they can be read."""
    if wanted.isdigit():
        return ImageTokens(f"{wanted} tokens per image", lambda width, height: int(wanted))
    rule = _BY_NAME.get(wanted) if wanted != AUTO else _matching(model, config or {})
    if rule is None:
        return None
    settings = processor or {}
    return ImageTokens(rule.name, lambda w, h: rule.tokens(w, h, settings))


def _matching(model: str, config: Settings) -> VisionRule | None:
    kind = config.get("model_type")
    if kind is not None:
        return next((rule for rule in RULES if kind in rule.model_types), None)
    return next((rule for rule in RULES if re.search(rule.names, model.lower())), None)
