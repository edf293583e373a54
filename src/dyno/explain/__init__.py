"""Where the time went: records and what a server says of its times → parts that add up to the latency.

`columns` has the records as arrays; `gaps` the time between tokens, and whether it shows an engine's steps; `stalls`
says how long these are without other prompts, and by how much they are longer; `bounds` is the least that the hardware
allows; `claims` says which of the server's times are used; `split` puts the parts together, and `explain` adds up a
run; `difference` compares two sides; `events` finds what happened around a slow request.
"""
