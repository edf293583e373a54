"""Which colour and line a series has, the same everywhere in a report."""

from collections.abc import Iterable

# Okabe and Ito's, without black and yellow, which a dark or a white page swallows. Vermillion is for failures alone.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8B5A2B", "#999933")
FAILURE = "#D55E00"
GREY = "#8A8A8A"  # seen on white and on near-black
# More series than colours: the same ones again, with another line. Plain dashes are for estimates.
DASHES = ((1, 0), (9, 3, 2, 3), (2, 3), (12, 3, 2, 3, 2, 3))


class Look:
    """Which colour and line a series has, the same in all charts of a report."""

    def __init__(self, series: Iterable[str]) -> None:
        self.places = {name: i for i, name in enumerate(dict.fromkeys(series))}

    def colour(self, series: str) -> str:
        return PALETTE[self.places[series] % len(PALETTE)]

    def dash(self, series: str) -> list[int]:
        return list(DASHES[self.places[series] // len(PALETTE) % len(DASHES)])

    def ordered(self, series: Iterable[str]) -> list[str]:
        return sorted(set(series), key=self.places.__getitem__)
