"""Prompts with images: generated ones, as vLLM's random-mm, and files of the user."""

import ast
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from dyno.option import Option
from dyno.workload import vision
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits

_MOST_PIXELS = 1 << 26  # of an image; more is a slip of the pen
_MOST_FRAMES = 1000
_KINDS = ("image", "video")


class Bucket(NamedTuple):
    height: int
    width: int
    frames: int

    @property
    def kind(self) -> Literal["image", "video"]:
        return "image" if self.frames == 1 else "video"


def parse_buckets(text: str) -> dict[Bucket, float]:
    """Read sizes and their shares. Raise ValueError with words that follow the setting's name."""
    shares = {
        _bucket(key): _share(key, share) for key, share in _parsed_table(text).items()
    }
    total = sum(shares.values())
    if not total:
        raise ValueError("needs a share above 0")
    return {bucket: share / total for bucket, share in shares.items() if share}


def _bucket(key: Any) -> Bucket:
    size = _literal(key) if isinstance(key, str) else key
    whole = isinstance(size, tuple) and len(size) == 3
    if not whole or not all(type(n) is int and n > 0 for n in size):
        raise ValueError(f"needs sizes such as (720, 1280, 1), but has {key!r}")
    bucket = Bucket(*size)
    if bucket.height * bucket.width > _MOST_PIXELS or bucket.frames > _MOST_FRAMES:
        raise ValueError(f"has a size beyond all models: {key}")
    return bucket


def _share(key: Any, share: Any) -> float:
    if type(share) not in (int, float) or not 0 <= share < math.inf:
        raise ValueError(f"needs a share of at least 0 for {key}, but has {share!r}")
    return float(share)


def parse_limits(text: str) -> dict[str, int]:
    """Read the most images and videos of a request. Raise ValueError likewise."""
    limits = _parsed_table(text)
    for kind, most in limits.items():
        if kind not in _KINDS or type(most) is not int or most < 0:
            raise ValueError(f"needs counts of image and video, but has {kind!r}: {most!r}")
    return limits


def _parsed_table(text: str) -> dict[Any, Any]:
    """Read JSON, or a dict as vLLM takes it: {(256, 256, 1): 0.5}."""
    table = _literal(text)
    if not isinstance(table, dict):
        raise ValueError(f"must be a table, but is {text}")
    return table


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"can't be read: {text}") from None


def buckets_problem(text: str) -> str | None:
    return _why(parse_buckets, text)


def limits_problem(text: str) -> str | None:
    return _why(parse_limits, text)


def _why(parse: Callable[[str], object], text: str) -> str | None:
    """Return why a text can't be parsed."""
    try:
        parse(text)
    except ValueError as e:
        return str(e)
    return None


class ImagesSpec(CommonSpec, frozen=True):
    image_tokens: Annotated[
        str,
        Option(
            "--image-tokens",
            "RULE",
            "the model's rule for the tokens of an image: a family such as qwen2-vl, a number, or none (default: auto, "
            "by the model)",
            grammar=vision.problem,
            subject=False,
        ),
    ] = "auto"


class RandomMmSpec(ImagesSpec, frozen=True):
    random_mm_base_items_per_request: Annotated[
        int,
        Option(
            "--random-mm-base-items-per-request",
            "N",
            "random-mm: images and videos of a request",
            least=0,
            most=1000,
        ),
    ] = 1
    random_mm_num_mm_items_range_ratio: Annotated[
        float,
        Option(
            "--random-mm-num-mm-items-range-ratio",
            "R",
            "random-mm: their number is drawn from N × (1 − R) to N × (1 + R)",
            least=0,
            most=1,
        ),
    ] = 0.0
    random_mm_limit_mm_per_prompt: Annotated[
        str,
        Option(
            "--random-mm-limit-mm-per-prompt",
            "JSON",
            "random-mm: most images and videos of a request",
            grammar=limits_problem,
        ),
    ] = '{"image": 255, "video": 1}'
    random_mm_bucket_config: Annotated[
        str,
        Option(
            "--random-mm-bucket-config",
            "JSON",
            "random-mm: share of each size, as (height, width, frames); several frames are a video",
            grammar=buckets_problem,
        ),
    ] = '{"(256, 256, 1)": 0.5, "(720, 1280, 1)": 0.5, "(720, 1280, 16)": 0.0}'
    image_format: Annotated[
        Literal["jpeg", "png"],
        Option("--image-format", help="random-mm: format of generated images"),
    ] = "jpeg"


RANDOM_MM = Dataset(
    name="random-mm",
    about="random text with generated images: `--random-mm-bucket-config`; needs `--backend openai-chat`",
    make="multimodal:random_mm",
    # not exact: what images add is the model's affair
    traits=DatasetTraits(endless=True, media=True),
    spec=RandomMmSpec,
    needs=("input_len", "output_len"),
)
CUSTOM_IMAGE = Dataset(
    name="custom_image",
    about="JSON lines with `prompt` and `image_files`",
    make="multimodal:custom_image",
    traits=DatasetTraits(file=True, media=True),
    spec=ImagesSpec,
    lengths_of="custom",
)
