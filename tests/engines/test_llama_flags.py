"""llama.cpp's own flags: spelled for the build that is there, and compared with what it reports."""

import json
from pathlib import Path
from typing import Any

import pytest

from dyno.engines.kinds import KINDS
from dyno.engines.kinds.base import Program
from dyno.errors import UsageError
from dyno.facts import llama
from dyno.facts.engine import EngineSpec
from dyno.facts.offline import Batch
from dyno.facts.target import TargetFacts
from dyno.measure.agreement import differences

CAPTURES = Path(__file__).parents[1] / "captures"
BATCH = Batch("micro", 1, 64)


def written(program: str, build: str | None, typed: str) -> str:
    """The flags as they are written for a build of llama-server or llama-bench."""
    batch = BATCH if program == "llama-bench" else None
    located = Program(["/no/such/llama-bench" if batch else "llama-server"], build)
    return " ".join(KINDS["llamacpp"].own_args(typed.split(), located, batch))


@pytest.mark.parametrize(
    ("program", "build", "typed", "read"),
    [
        ("llama-bench", "6327", "-fa 1", "-fa 1"),
        ("llama-bench", "6327", "--flash-attn on", "-fa 1"),
        ("llama-bench", "6327", "-fa off -fa=enabled", "-fa 0 -fa 1"),
        ("llama-bench", "6327", "-fa -t 2", "-fa 1 -t 2"),
        ("llama-bench", "11434", "--flash_attn on -fa auto", "-fa 1 -fa auto"),
        ("llama-bench", None, "-fa on", "-fa 1"),
        ("llama-server", "6324", "-fa 1 -ngl 99", "-fa -ngl 99"),
        ("llama-server", "6324", "-fa 0", ""),
        ("llama-server", "6325", "-fa", "-fa on"),
        ("llama-server", "6327", "-fa 1", "-fa on"),
        ("llama-server", "6327", "--flash-attn -1", "--flash-attn auto"),
        ("llama-server", None, "-fa 0", "-fa off"),
        ("llama-bench", "6327", "-mmp 0 -nkvo 1", "-mmp 0 -nkvo 1"),
        ("llama-bench", "10105", "-mmp 0", "-lm none"),
        ("llama-bench", "6327", "-lm mmap", "-mmp 1"),
        ("llama-bench", "6327", "--no-mmap", "-mmp 0"),
        ("llama-server", "6327", "-mmp 0 -nkvo 1 -nkvo 0", "--no-mmap --no-kv-offload"),
        (
            "llama-server",
            "11434",
            "--no-mmap --mlock",
            "--load-mode none --load-mode mmap+mlock",
        ),
        ("llama-server", "6327", "--load-mode none", "--no-mmap"),
        ("llama-server", "6500", "-cb -kvu -no-kvu", "-cb -kvu"),
        ("llama-server", "7856", "-nocb -no-kvu", "-nocb --no-kv-unified"),
        ("llama-bench", "6327", "--gpu-layers 9 -ts 3,1 -sm row", "-ngl 9 -ts 3/1 -sm row"),
        (
            "llama-server",
            "6327",
            "-ts 3/1 -ot a=CPU;b=CPU -ctk q8_0",
            "-ts 3/1 -ot a=CPU,b=CPU -ctk q8_0",
        ),
        ("llama-bench", "5400", "-dt 0.1", "-dt 0.1"),
        ("llama-server", "6327", "--temp 0.3 --unknown=1", "--temp 0.3 --unknown=1"),
    ],
)
def test_a_flag_in_any_spelling_is_written_as_the_build_reads_it(
    program: str, build: str | None, typed: str, read: str
) -> None:
    assert written(program, build, typed) == read


@pytest.mark.parametrize(
    ("program", "build", "typed", "reason"),
    [
        (
            "llama-bench",
            "6327",
            "-fa auto",
            "llama-bench 6327 has no -fa auto; builds from 9437 have it. Change it",
        ),
        ("llama-bench", "6327", "-ncmoe 4", "has no -ncmoe 4; builds from 6490"),
        ("llama-bench", "6327", "-dt 0.1", "builds from 5361 to before 6245 have it"),
        (
            "llama-bench",
            "11434",
            "-np 16",
            "llama-bench 11434 has no -np 16. Change it, remove it, or measure with --by",
        ),
        ("llama-bench", "6327", "-lm dio", "builds from 10105"),
        (
            "llama-server",
            "5000",
            "--kv-unified",
            "llama.cpp 5000 has no --kv-unified; builds from 5913",
        ),
        ("llama-server", "6324", "-fa auto", "builds from 6325 have it"),
    ],
)
def test_a_flag_that_the_build_lacks_is_refused_with_the_builds_that_have_it(
    program: str, build: str, typed: str, reason: str
) -> None:
    with pytest.raises(UsageError) as refused:
        written(program, build, typed)
    assert reason in str(refused.value)


REPORT_6327 = json.loads((CAPTURES / "llama-bench-6327.jsonl").read_text())
REPORT_11434 = json.loads((CAPTURES / "llama-bench-11434.json").read_text())[0]
OTHER = {
    "model_filename": "b.gguf", "n_batch": 64, "n_ubatch": 64, "n_threads": 7, "cpu_mask": "0x3", "cpu_strict": True,
    "poll": 1, "type_k": "q8_0", "type_v": "q8_0", "n_gpu_layers": 3, "n_cpu_moe": 3, "split_mode": "row",
    "main_gpu": 1, "no_kv_offload": True, "flash_attn": 0, "tensor_split": "3.00/1.00", "use_mmap": False,
    "tensor_buft_overrides": "a=CPU", "load_mode": "none", "no_op_offload": 1, "no_host": True,
}  # fmt: skip


@pytest.mark.parametrize("report", [REPORT_6327, REPORT_11434], ids=["6327", "11434"])
def test_every_setting_that_llama_bench_reports_is_compared_with_its_flag(
    report: dict[str, Any],
) -> None:
    compared = [key for key in report if key in llama.NAMES]
    assert {"flash_attn", "n_gpu_layers", "type_k", "n_threads", "split_mode"} < set(
        compared
    )
    command = [
        word for key in compared for word in (llama.NAMES[key][0], _word(report[key]))
    ]
    assert not list(llama.differences(command, report, "llama-bench"))
    for key in compared:
        [sentence] = llama.differences(
            command, {**report, "use_mmap": None, key: OTHER[key]}, "llama-bench"
        )
        assert sentence.startswith(
            f"{llama.NAMES[key][0]} {_word(report[key])} was asked for, but llama-bench reports"
        )
        assert f"{key} {_word(OTHER[key])}" in sentence
    unasked = {key: OTHER[key] for key in compared}
    assert not list(llama.differences([], unasked, "llama-bench")), (
        "its defaults are its own"
    )


def _word(value: Any) -> str:
    return str(int(value) if isinstance(value, bool) else value)


def test_an_old_llama_bench_that_reads_auto_as_off_is_noticed() -> None:
    [sentence] = llama.differences(
        ["-fa", "auto"], {**REPORT_6327, "flash_attn": False}, "llama-bench"
    )
    assert sentence == "-fa auto was asked for, but llama-bench reports flash_attn 0"
    assert not list(llama.differences(["-fa", "auto"], REPORT_11434, "llama-bench"))


def test_a_load_mode_is_compared_with_the_builds_that_called_it_mmap() -> None:
    assert not list(llama.differences(["-mmp", "1"], REPORT_6327, "x"))
    assert list(llama.differences(["-mmp", "0"], REPORT_6327, "x"))
    assert list(llama.differences(["-lm", "none"], REPORT_6327, "x"))
    assert list(
        llama.differences(["-mmp", "1"], {**REPORT_11434, "load_mode": "none"}, "x")
    )


def test_shares_and_masks_are_compared_as_numbers() -> None:
    report = {"tensor_split": "3.00/1.00", "cpu_mask": "0xF"}
    assert not list(llama.differences(["-ts", "3/1/0", "-C", "f"], report, "x"))
    assert len(list(llama.differences(["-ts", "1/3", "-C", "0x1"], report, "x"))) == 2
    assert list(llama.differences(["-ts", "half"], report, "x")), (
        "what can't be read is not as asked"
    )


def test_a_servers_log_is_compared_with_its_flags() -> None:
    target = (
        KINDS["llamacpp"].read_log((CAPTURES / "llama-server-6327.log").read_text()).target
    )
    facts = TargetFacts("m", settings=target["settings"])

    def wrong(flags: str) -> list[str]:
        return list(differences(EngineSpec("llamacpp"), facts, command=flags.split()))

    assert (
        wrong("-fa on -np 2 -cb -b 128 -c 4096 -ctk f16 -t 2 --no-kv-unified -ngl 99") == []
    )
    assert wrong("-b 128 -ub 512") == [], "a server cuts what can't be used"
    assert wrong("-fa 0") == ["-fa 0 was asked for, but it reports flash_attn enabled"]
    assert len(wrong("-np 4 -b 64 -c 8192 -ctk q8_0 -ctv q8_0 -t 1 -kvu")) == 7


@pytest.mark.parametrize(("asked", "offloaded"), [(99, 33), (20, 20), (-1, 7)])
def test_layers_on_the_accelerator_are_those_that_the_model_has(
    asked: int, offloaded: int
) -> None:
    log = "load_tensors: offloaded {}/33 layers to GPU\n"
    settings = [
        KINDS["llamacpp"].read_log(log.format(n)).target["settings"]
        for n in (offloaded, 12)
    ]
    same, fewer = (list(llama.differences(["-ngl", str(asked)], s, "it")) for s in settings)
    assert not same
    assert bool(fewer) == (asked >= 0)


def test_a_folder_is_not_a_model_of_llama_cpp_and_the_message_says_what_is(
    tmp_path: Path,
) -> None:
    kind, program = KINDS["llamacpp"], Program(["llama-server"], "11549")
    with pytest.raises(UsageError, match=r"a GGUF file\. Make one: dyno models"):
        kind.argv(EngineSpec("llamacpp", model=str(tmp_path)), program, 8000)
    (tmp_path / "small-Q4_0.gguf").touch()
    with pytest.raises(UsageError, match=r"Give one of its files: small-Q4_0\.gguf\."):
        kind.argv(EngineSpec("llamacpp", model=str(tmp_path)), program, 8000)
    assert kind.argv(
        EngineSpec("llamacpp", model=str(tmp_path / "small-Q4_0.gguf")), program, 8000
    )
