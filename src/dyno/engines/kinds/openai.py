"""Any server that runs already: dyno attaches to it, and compares what it reports with the setting."""

from dyno.engines.kinds.base import PROFILE_ROUTES, EngineKind


class OpenAi(EngineKind):
    name = "openai"
    title = "a running server"
    about = "any running server"
    starts = False
    profiler = PROFILE_ROUTES  # of vLLM and SGLang

    in_documents = False


KIND = OpenAi()
