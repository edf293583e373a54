"""A field is declared once, at its struct: SQL columns, flags, range checks and study keys take their words from there.

completed: Annotated[int, "requests"]
max_num_seqs: Annotated[int | None, Option("--max-num-seqs", "N", "requests at once", least=1)] = None
"""

from typing import get_args

import msgspec


def sentences(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The field's name in a file → the sentence about it, of those that have one."""
    fields = msgspec.structs.fields(struct)
    return {f.encode_name: word for f in fields for word in get_args(f.type)[1:] if isinstance(word, str)}
