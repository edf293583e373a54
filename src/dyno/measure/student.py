"""Student's t: how far a mean of few values may be off. numpy doesn't have it, and scipy is much for two functions."""

import math
from functools import lru_cache

_NORMAL = 1e6  # degrees of freedom from which t is the normal distribution to six digits


def two_sided(t: float, df: float) -> float:
    """The probability of a value as far from zero as `t`, where there is nothing but chance."""
    if math.isinf(t):
        return 0.0
    if df >= _NORMAL:
        return math.erfc(abs(t) / math.sqrt(2))
    return _beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def quantile(p: float, df: float) -> float:
    """The t below which a share `p` lies, from one half to below one."""
    t = 0.0
    for _ in range(100):  # Newton's steps: right of zero they come from below and never go too far
        step = (p - 1 + two_sided(t, df) / 2) / _density(t, df)
        t += step
        if step <= 1e-9 * t:
            break
    return t


def welch_df(a: float, a_df: float, b: float, b_df: float) -> float:
    """Of the sum of two squared errors with their own degrees of freedom (Welch and Satterthwaite)."""
    below = a * a / a_df + b * b / b_df
    return (a + b) ** 2 / below if below > 0 else a_df + b_df


def _density(t: float, df: float) -> float:
    if df >= _NORMAL:
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    log = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(log - (df + 1) / 2 * math.log1p(t * t / df))


def _beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # there the fraction of the other side converges fast
        return 1 - _beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    f, c, d = 1.0, 1.0, 0.0
    for i in range(500):
        m = i // 2
        if i == 0:
            step = 1.0
        elif i % 2 == 0:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + step * d)
        c = 1 + step / c
        f *= c * d
        if abs(1 - c * d) < 1e-12:
            break
    return front * (f - 1)
