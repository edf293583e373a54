"""Did the model answer that was asked for?"""

from collections.abc import Iterator

from dyno.checks.evidence import Evidence
from dyno.facts.finding import Finding


def name(e: Evidence) -> Iterator[Finding]:
    asked, listed = e.target.model, e.target.models_listed
    if listed is not None and asked not in listed:
        yield Finding(
            "model.not_listed",
            "doubt",
            f"The server doesn't list the model {asked!r}; it lists {', '.join(map(repr, listed[:10])) or 'none'}.",
            "Some servers answer to any name with the model they have. Name the one that is meant with --model.",
        )
    others = {m: n for m, n in e.summary.models_answered.items() if m != asked}
    if others:
        what = ", ".join(f"{m!r} ({n})" for m, n in others.items())
        # Hosted services answer with a dated name: gpt-4o-2024-08-06 for gpt-4o.
        dated = all(m.startswith(asked) for m in others)
        yield Finding(
            "model.other_answered",
            "doubt" if dated else "void",
            f"{sum(others.values())} of {e.summary.completed} answers carry another name than {asked!r}: {what}.",
            "These may be another model's figures. Check what the server really loaded, and --model.",
        )
