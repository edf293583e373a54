"""How many neighbouring requests are worth one independent request: those in one batch or queue are late together."""

import numpy as np

FEWEST_BATCHES = 8
_EQUAL = 1e-12  # of the mean square: a variance that is none
_STILL_GROWING = 1.3  # from one batch size to the next: there is no plateau yet
# times what the largest batches show: their own variance is known from a few of them
_MOST_BEYOND = 2.5


def _variance(values: np.ndarray, degrees: int) -> float:
    """Return the same as values.var(), without what that takes for a few numbers."""
    off = values - values.sum() / len(values)
    return float(off @ off) / degrees


def together(values: np.ndarray, wave: int = 1) -> float:
    """Return the factor by which the mean of these values, in the order of sending, varies more than that of as many
    independent ones. `wave`: requests that a load has in flight. Batches of whole waves say most, if there are enough.
    """
    n = len(values)
    spread = _variance(values, n) if n else 0.0
    if n < 2 * FEWEST_BATCHES or spread <= _EQUAL * float(np.square(values).mean()):
        return 1.0
    size = 2 * wave if n >= 2 * wave * FEWEST_BATCHES else 2
    factor = previous = last = 1.0
    sums = np.concatenate(([0.0], np.cumsum(values)))
    while n // size >= FEWEST_BATCHES:
        means = np.diff(sums[::size][: n // size + 1]) / size
        previous, last = last, _variance(means, len(means) - 1) * size / spread
        factor = max(factor, last)
        size *= 2
    if last == factor and last > _STILL_GROWING * previous:
        factor *= min((last / previous) ** 2, _MOST_BEYOND)
    return min(factor, float(n))
