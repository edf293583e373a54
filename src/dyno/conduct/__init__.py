"""The flows over many trials, and over what was measured before.

`study_plan` and `dry_run` say what a study would do, `provide` makes what is missing, `study` runs what is left of
it here and on its rigs. `read` collects results for reports and comparisons. `far_side` is the program that keeps
an engine running for a load from another machine.
"""
