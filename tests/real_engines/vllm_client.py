"""Run by vLLM's own interpreter: `vllm bench serve` for several command lines in one process, and vLLM's own flags.

python vllm_client.py JOBS.json     a list of command lines; prints one line of JSON for each: '' or the error
python vllm_client.py flags         prints the flags of its benchmarks that are not the engine's, as JSON
"""

import json
import sys
from pathlib import Path
from typing import Any


def flags() -> dict[str, Any]:
    from vllm.benchmarks import latency, serve, throughput
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    engine = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    out = {}
    for module in (serve, throughput, latency):
        parser = FlexibleArgumentParser()
        module.add_cli_args(parser)
        own = {a.option_strings[0]: a for a in parser._actions if a.option_strings}
        if module is not serve:
            own = {f: a for f, a in own.items() if f not in engine._option_string_actions}
        out[module.__name__.rpartition(".")[2]] = {
            flag: {
                "default": _plain(action.default),
                "choices": action.choices and [*action.choices],
            }
            for flag, action in own.items()
            if flag != "-h"
        }
    return out


def _plain(value: Any) -> Any:
    """Return a default with keys that JSON has."""
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


def run(words: list[str]) -> str:
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    try:
        serve.main(parser.parse_args(words))
    except (Exception, SystemExit) as e:
        return f"{type(e).__name__}: {e}"
    return ""


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # what vLLM prints is no answer
    if sys.argv[1] == "flags":
        print(json.dumps(flags(), default=str), file=out)
        return
    for words in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(run(words)), file=out, flush=True)


if __name__ == "__main__":
    main()
