"""`python -m dyno.engines.fake PORT SPEC [NAME=VALUE …]`: how dyno runs it. By hand: `dyno engines start fake`."""

import sys

import msgspec

from dyno.engines.fake import FakeSpec, changed
from dyno.engines.fake.server import serve

spec = msgspec.json.decode(sys.argv[2], type=FakeSpec)
serve(changed(spec, sys.argv[3:]), int(sys.argv[1]))
