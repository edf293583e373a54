"""Quality tests: how many items of a task a served model answers rightly.

In comes a trial with its tasks. `ask` has the items and their questions, `flow` sends them at a concurrency and keeps
each answer; `lm_eval` lets EleutherAI's harness ask and score (`harness` runs in its environment). Out goes a result
whose `quality` has a score for each task, with every item's answer beside it, so that two runs are compared item by
item.
"""
