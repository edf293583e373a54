"""What a folder of results is, in the words of whoever keeps it."""

import msgspec


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str = ""
    about: str = ""  # a sentence or two, plain text
    source: str = ""  # who published it, where
