"""Prompts with images: generated ones, as vLLM's random-mm, and files of the user."""

from typing import Annotated, Literal

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits


def buckets_problem(text: str) -> str | None:
    from dyno.workload.multimodal import parse_buckets

    return _why(parse_buckets, text)


def limits_problem(text: str) -> str | None:
    from dyno.workload.multimodal import parse_limits

    return _why(parse_limits, text)


def _why(parse: object, text: str) -> str | None:
    assert callable(parse)
    try:
        parse(text)
    except ValueError as e:
        return str(e)
    return None


def _rule_problem(text: str) -> str | None:
    from dyno.facts import vision

    return vision.problem(text)


class ImagesSpec(CommonSpec, frozen=True):
    image_tokens: Annotated[
        str,
        Option(
            "--image-tokens",
            "RULE",
            "the model's rule for the tokens of an image: a family such as qwen2-vl, a number, or none (default: auto, "
            "by the model)",
            grammar=_rule_problem,
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
    traits=DatasetTraits(endless=True),
    spec=RandomMmSpec,
    needs=("input_len", "output_len"),
)
CUSTOM_IMAGE = Dataset(
    name="custom_image",
    about="JSON lines with `prompt` and `image_files`",
    make="multimodal:custom_image",
    traits=DatasetTraits(file=True),
    spec=ImagesSpec,
    lengths_of="custom",
)
