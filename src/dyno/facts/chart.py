"""A chart: its words, a Vega-Lite specification without data, and the rows that it draws.

What the page counts on, of every chart:
- the data is the named one, DATA; each row has `series`, and `entry` (Entry.id) where it belongs to one;
- the specification has a parameter `hidden` (a list of series that are not to be drawn), and, where `per` is told,
  a parameter `per` (one of PER).
"""

from typing import Any

import msgspec

DATA = "rows"
# What throughput is told for. measured: what was measured, as it is. accelerator, machine: one of them; a machine of
# which a part was measured is an estimate, as if nothing were lost, and drawn dashed. dollar: each that an hour costs.
PER = ("measured", "accelerator", "machine", "dollar")


class Chart(msgspec.Struct, frozen=True):
    name: str  # 'throughput-concurrency': anchor in the page and name of the picture
    group: str  # heading under which it stands: Throughput, Latency, Cost, …
    title: str
    about: str  # how to read it, in a sentence or two
    spec: dict[str, Any]
    rows: list[dict[str, Any]]
    per: list[str] = []  # of PER, those that its data has; [] or ['measured']: no switch
