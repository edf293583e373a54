"""Searches over many trials: the highest load within a target (`find`), the best setting of an engine (`tune`).

In comes a `FindSpec` or a `TunePlan`, and for `tune` a function that runs the trials it plans. `search` chooses the
next load, `judge` decides what a probe shows, `follow` watches a probe from a process of its own. Out goes a
`FindAnswer` or a `TuneAnswer`, with every probe in a run folder.
"""
