"""Other machines: reached by SSH, provided by dstack, joined by Ray.

In comes a study's rig or an engine's spec. `ssh` runs `agent` there, `wheel` brings dyno along, `register` remembers
what is up. `elsewhere` runs a rig's part of a study there and fetches its results; `engine` is an engine there for a
load from here; `on_ray` places a load's client processes. Out come run folders, as if they had been made here.
"""
