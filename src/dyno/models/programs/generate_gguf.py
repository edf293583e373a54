"""Generate greedy text with the embedded engine: MODEL OUT TOKENS. A process of its own, as a bad file may kill it."""

import json
import sys
from pathlib import Path

from dyno.engines import embedded

_PROMPT = "The capital of France is"


def main(model: str, out: str, tokens: str) -> None:
    server = embedded.server(
        ["--model", model, "--port", "0", "--ctx-size", "256", "--no-warmup"]
    )
    body = {"prompt": _PROMPT, "max_tokens": int(tokens), "temperature": 0.0, "seed": 1}
    answer = server.handle_completions(body)
    answer = json.loads(answer) if isinstance(answer, str | bytes) else answer
    if "choices" not in answer:
        sys.exit(f"error: {answer}")
    Path(out).write_text(answer["choices"][0]["text"], encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
