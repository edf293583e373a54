"""The answer of `dyno tune` in lines: a person reads it in a terminal of 100 columns, or of 60."""

from typing import Any

import pytest
from msgspec.structs import replace

from dyno.facts.tune import Setting, TuneAnswer, TuneGain, TuneSpec, TuneTrial
from dyno.report.tune import brief, lines
from dyno.screen import SCREEN, Screen

LOG = "runs/s-tune/engines/004-llama-max_num_seqs-256/engine.log"
ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 139 GiB"
FAILED = (
    f'vLLM exited with code 1 after 41.2 s: "{ERROR} of which 1.1 GiB is free | RuntimeError: Engine core '
    f'initialization failed. {"See root cause above. " * 12}". It ran out of memory. Lower max_model_len. '
    f"Read {LOG} for the rest."
)
KNOWN = ", ".join(f"value{i}" for i in range(60))
BEST: Setting = {"max_num_seqs": 64, "--threads": 2, "--cache-type-k": "q8_0"}


def answer(gain: TuneGain | None = None, **spec: Any) -> TuneAnswer:
    best = TuneTrial(
        BEST,
        "measured",
        value=1649.0,
        long_value=1659.0,
        throughput=1649.0,
        p99_ttft_ms=9.1,
    )
    return TuneAnswer(
        study="s",
        engine="llama",
        spec=TuneSpec({}, **spec),
        ended="budget",
        default=TuneTrial(
            {}, "measured", value=932.0, long_value=930.0, throughput=932.0, p99_ttft_ms=5.2
        ),
        trials=[
            best,
            TuneTrial({**BEST, "max_num_seqs": 256}, "failed", FAILED),
            TuneTrial(
                {**BEST, "max_num_seqs": 128},
                "failed",
                FAILED.replace("41.2", "39.9").replace("004", "005"),
            ),
            TuneTrial(
                {**BEST, "--threads": 64},
                "discarded",
                f"llama.cpp has no such value. Known: {KNOWN}.",
            ),
            TuneTrial(
                {"max_num_seqs": 1},
                "measured",
                value=100.0,
                objection="p99 TTFT is 300 ms.",
            ),
        ],
        best=best,
        duration_s=100.0,
        gain=gain,
        possible=24,
    )


def printed(screen: Screen, shown: TuneAnswer) -> list[str]:
    token = SCREEN.set(screen)
    try:
        return list(lines(shown))
    finally:
        SCREEN.reset(token)


@pytest.mark.parametrize("width", [100, 60])
def test_every_line_fits_the_terminal_but_for_commands_and_paths(width: int) -> None:
    gain = TuneGain(930.0, 1659.0, 3, 0.784, 0.75, 0.81)
    text = printed(
        Screen(width, fits=True), answer(gain, target=["ttft_p99:150", "failed:0"])
    )
    assert [line for line in text if len(line) > width and "Log:" not in line] == []
    head = next(line for line in text if line.startswith("setting"))
    # which is the best is seen in a narrow terminal, too
    assert "result" in head and "output tokens/s" in head
    assert "+78.4 % against the default (95 % interval: +75 % to +81 %)" in " ".join(
        " ".join(text).split()
    )


def test_a_failed_start_takes_a_few_lines_with_the_advice_and_the_path_of_its_log_once() -> (
    None
):
    text = printed(Screen(), answer())
    whole = "\n".join(text)
    # the same failure, after another time
    assert f"    Log: {LOG}" in text and whole.count("Log:") == 1
    start = next(
        i
        for i, line in enumerate(text)
        if line.startswith("    failed: vLLM exited with code 1:")
    )
    reason = text[start : text.index(f"    Log: {LOG}")]
    assert len(reason) <= 3 and "CUDA out of memory" in reason[0] + reason[1]
    assert "It ran out of memory. Lower max_model_len." in " ".join(
        line.strip() for line in reason
    )
    assert "value59" not in whole and "Known: value0, value1" in whole and "…" in whole


def test_a_short_reason_stays_as_it_is() -> None:
    assert brief("p99 TTFT is 300 ms: the target is p99 TTFT ≤ 150 ms.") == (
        "p99 TTFT is 300 ms: the target is p99 TTFT ≤ 150 ms.",
        "",
    )
    assert brief('It died: "a | b". Read x/engine.log for the rest.') == (
        'It died: "a".',
        "x/engine.log",
    )


def test_a_load_is_a_count() -> None:
    text = "\n".join(
        printed(
            Screen(),
            answer(
                TuneGain(4.0, 38.0, 2, 8.5, 8.0, 9.0), objective="load", target=["ttft:9"]
            ),
        )
    )
    assert "38; default: 4 (mean of 2" in text and "1,649" in text and "1,649.0" not in text


@pytest.mark.parametrize(
    ("objective", "gain", "words"),
    [
        (
            "throughput",
            TuneGain(100.0, 101.0, 3, 0.01, -0.02, 0.04),
            "The interval includes no difference",
        ),
        (
            "throughput",
            TuneGain(100.0, 99.0, 2, -0.01, -0.95, 19.0, 34),
            "default (too few repeats)",
        ),
        ("throughput", TuneGain(100.0, 99.0, 2, -0.01, -0.95, 19.0, 34), "would do."),
        (
            "throughput",
            TuneGain(100.0, 90.0, 3, -0.1, -0.12, -0.08),
            "In these repeats the default is better",
        ),
        (
            "ttft_p99",
            TuneGain(100.0, 110.0, 3, 0.1, 0.08, 0.12),
            "In these repeats the default is better",
        ),
        (
            "throughput",
            TuneGain(100.0, 110.0, 1, 0.1),
            "The gain has no interval: set confirm_repeats",
        ),
        ("throughput", None, "1,659; default: 930.0 (not confirmed by repeats)"),
    ],
)
def test_a_gain_that_is_in_doubt_is_not_praised(
    objective: str, gain: TuneGain | None, words: str
) -> None:
    assert words in "\n".join(printed(Screen(), answer(gain, objective=objective)))
    real = TuneGain(100.0, 90.0 if objective == "ttft_p99" else 110.0, 3, 0.1, -0.12, -0.08)
    if objective == "ttft_p99":
        assert "default is better" not in "\n".join(
            printed(Screen(), answer(real, objective=objective))
        )


def test_each_setting_has_its_verdict_and_with_a_price_its_cost() -> None:
    plain = answer()
    best = replace(plain.trials[0], cost=0.25, verdict="sound")
    priced = replace(plain, trials=[best, *plain.trials[1:]], best=best, currency="EUR")
    [head, row] = [
        x
        for x in printed(Screen(200), priced)
        if x.startswith(("setting", "max_num_seqs=64"))
    ][:2]
    assert head.split("  ")[-1].strip() == "verdict" and "EUR per M tokens" in head
    assert row.split()[-2:] == ["0.2500", "sound"]
    assert "per M tokens" not in "\n".join(printed(Screen(200), plain))
