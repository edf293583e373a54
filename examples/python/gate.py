"""Measure a server and compare it with an earlier run. Exit code 1: it became slower."""

import sys

import dyno


def measure(url: str) -> dyno.MeasuredRun:
    return dyno.serve(
        base_url=url,
        max_concurrency=4,
        num_prompts=40,
        input_len=32,
        output_len=16,
        progress=lambda now: (
            print(now.phase, file=sys.stderr) if now.ended is None else None
        ),
    )


def main(url: str, before: str) -> int:
    run = measure(url)
    compared = dyno.compare(
        before, run, gates=["p50_ttft_ms<20%", "output_throughput>-10%"]
    )
    print(compared.text)
    for gate in compared.gates:
        print(gate.gate, gate.state)
    return 1 if any(gate.state == "broken" for gate in compared.gates) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
