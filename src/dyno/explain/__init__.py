"""Where the time went: records and what a server says of its times → parts that add up to the latency.

`columns` has the records as arrays; `gaps` the time between tokens; `steps` says how long an engine's steps are without
other prompts, `together` whether gaps show them, `stalls` by how much they are longer; `bounds` is the least that the
hardware allows; `split` puts the parts together, and `explain` adds up a run; `difference` compares two sides; `events`
finds what happened around a slow request.
"""
