"""A sequential test: is a share, or a mean, below or above a limit? Looked at at any time, it still errs seldom.

A fixed 95 % interval, looked at again and again, leaves out the truth far more often than in 5 % of cases. Here the
evidence is a likelihood ratio: the share drawn from a beta distribution, against the share at the limit (Robbins 1970).
Were the share at the limit, the ratio would reach 1/α at any time with a probability of at most α (Ville's inequality).
Requests that are late together are fewer independent ones: the counts are effective counts (measure/correlation.py).
"""

import math

SPREAD = 0.5  # of the beta distribution: how many events its mean is worth
_PRIOR = 6.0  # of the normal distribution of a mean: how many values it is worth


def evidence(events: float, count: float, share: float) -> float:
    """Return the log of the evidence against `share`, from so many events among `count`."""
    a, b = SPREAD, SPREAD * (1 - share) / share
    others = count - events
    return _log_beta(a + events, b + others) - _log_beta(a, b) - events * math.log(share) - others * math.log1p(-share)


def evidence_of_mean(t: float, count: float) -> float:
    """Return the log of the evidence against a mean at the limit. `t`: its distance in standard errors."""
    if count < 3 or not t:
        return 0.0
    degrees = count - 1
    squared = degrees * math.log1p(t * t / degrees) if math.isfinite(t) else math.inf  # heavier tails than the normal
    weight = count / (count + _PRIOR)
    return squared * weight / 2 + math.log1p(-weight) / 2


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
