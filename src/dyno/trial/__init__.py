"""One trial, from its spec to its result.

In comes a `TrialSpec` (facts/trial.py), a run folder and who watches. `serving` starts an engine or attaches to one,
`prepare` makes the prompts, `online` drives the load and finishes the result; `offline` does the same for an engine
that is loaded in a process of its own. Out goes an `Outcome`: the run's folder with its records, result and findings.
Nothing here knows of a second trial.
"""
