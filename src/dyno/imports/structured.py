"""JSON, CSV and SQL. To come."""

from dyno.facts.imported import Document


def read(file: str, data: bytes) -> Document | None:
    return None
