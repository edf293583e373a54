"""`python -m dyno.engines.fake PORT [NAME=VALUE …]`: how dyno runs it. By hand: `dyno engines start fake`."""

import sys

from dyno.engines.fake import FakeSpec, changed
from dyno.engines.fake.server import serve

serve(changed(FakeSpec(), sys.argv[2:]), int(sys.argv[1]))
