"""Requests that prescribe the form of their answers: a JSON schema, a choice, a pattern, or tools to call."""

from typing import Annotated, Literal

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset


class StructuredSpec(CommonSpec, frozen=True):
    structured_kind: Annotated[
        Literal["json", "json-unique", "object", "tools", "choice", "regex"],
        Option(
            "--structured-kind",
            help="structured: the form of answers; json-unique: another schema for each request, which no server has "
            "prepared",
            always=True,
        ),
    ] = "json"
    json_schema_path: Annotated[
        str | None,
        Option(
            "--json-schema-path",
            "FILE",
            "structured: a JSON schema (default: three of dyno's own)",
        ),
    ] = None
    structured_output_ratio: Annotated[
        float,
        Option(
            "--structured-output-ratio",
            "R",
            "structured: share of the requests that prescribe the form; the others ask for it in words alone",
            least=0,
            most=1,
        ),
    ] = 1.0


STRUCTURED = Dataset(
    name="structured-output",
    about="prompts whose answers must fit a schema or call a tool; needs `--backend openai-chat`",
    make="structured:forms",
    spec=StructuredSpec,
)
