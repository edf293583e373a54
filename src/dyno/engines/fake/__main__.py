"""`python -m dyno.engines.fake PORT SPEC`: how dyno runs it. By hand: `dyno engines start fake`."""

import sys

import msgspec

from dyno.engines.fake.server import serve
from dyno.engines.fake.spec import FakeSpec

serve(msgspec.json.decode(sys.argv[2], type=FakeSpec), int(sys.argv[1]))
