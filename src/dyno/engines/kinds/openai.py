"""Any server that runs already: dyno attaches to it, and holds what it tells against what the setting says."""

from dyno.engines.kinds.base import Kind


class OpenAi(Kind):
    name = "openai"
    title = "a running server"
    starts = False
