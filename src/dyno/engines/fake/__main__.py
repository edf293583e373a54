"""`python -m dyno.engines.fake PORT SPEC [NAME=VALUE …]`: how dyno runs it. By hand: `dyno engines start fake`."""

import sys

import msgspec

from dyno.engines.fake.server import serve
from dyno.engines.fake.spec import FakeSpec, changed

spec = msgspec.json.decode(sys.argv[2], type=FakeSpec)
serve(changed(spec, sys.argv[3:]), int(sys.argv[1]))
