"""Telemetry: what each source says, a sampler that never harms a trial, and figures with known answers."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from conftest import Scripted, StartFake
from dyno.clock import now_ns
from dyno.engines.kinds import metric_names
from dyno.errors import TargetError
from dyno.facts.engine import EngineFacts, EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.summary import Result
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.telemetry import Sample, SamplerFacts, SamplerSpec, TelemetrySummary
from dyno.facts.trial import TrialSpec
from dyno.http import Client, Url
from dyno.measure.telemetry import Window, summarize
from dyno.probe import accelerators, host, sysfs
from dyno.probe.accelerators import AcceleratorReading, Nvidia
from dyno.probe.accelerators.amd import Amd, GpuMetrics
from dyno.probe.telemetry import loop, metrics, sampler
from dyno.probe.telemetry.loop import HostMeter
from dyno.probe.telemetry.sampler import Sampler
from dyno.report import result_json
from dyno.report.machine import telemetry_pairs
from dyno.store.rows import read_row
from dyno.trial import online as trial
from dyno.trial.session import Session, Watcher
from dyno.units import NS_PER_S
from dyno.workload.spec import WorkloadSpec
from machines import GiB, Nvml, lay, mi300x_in_cpx, strix_halo, xeon

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

CAPTURE = Path(__file__).parents[1] / "captures/vllm-0.24-metrics.txt"

# ---- the engines' metrics ----


def read(text: str) -> dict[str, float]:
    return metrics.read(text, metric_names())


def test_the_metrics_of_a_real_vllm_are_read() -> None:
    assert read(CAPTURE.read_text()) == {
        "running_requests": 0.0,
        "waiting_requests": 0.0,
        "kv_used_share": 0.0,
        "preemptions": 0.0,
        "prefix_queried_tokens": 0.0,
        "prefix_hit_tokens": 0.0,
        "output_tokens": 618770.0,
        "queue_s": 3798.7410024369824,
        "prefill_s": 1669.8154882920376,
        "decode_s": 12220.24598402299,
        "timed_requests": 4837.0,
        "steps": 7679.0,
        "step_tokens": 3093877.0,
    }


def test_the_fake_engine_reports_requests_beyond_its_slots_as_waiting(
    fake: StartFake,
) -> None:
    engine = fake(first_ms=3000, gap_ms=1, slots=2)
    body = b'{"model": "fake", "prompt": "x", "max_tokens": 2, "stream": true}'
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    url = Url(engine.base_url)
    with contextlib.ExitStack() as open_:
        for _ in range(5):
            sock = open_.enter_context(socket.create_connection((url.host, url.port)))
            sock.sendall(head.encode() + body)
        client = Client(url, {})
        deadline = time.monotonic() + 10
        while seen_by(client).get("waiting_requests") != 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert seen_by(client)["waiting_requests"] == 3
        assert seen_by(client)["running_requests"] == 2
        client.close()


def seen_by(client: Client) -> dict[str, float]:
    _, text = client.call("/metrics")
    return read(str(text))


def test_a_busy_loop_of_another_process_is_counted() -> None:
    if host.busy_s() is None:
        pytest.skip("only a part of this machine is visible")
    with subprocess.Popen([sys.executable, "-c", "while 1: pass"]) as loop:
        cores = host.busy_cores(0.5)
        loop.kill()
    assert cores is not None and cores > 0.3


OLD_VLLM = """\
# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:num_requests_running{model_name="m"} 3.0
vllm:gpu_prefix_cache_queries_total{model_name="m"} 1e+03
vllm:gpu_prefix_cache_hits_total{model_name="m"} 640.0
vllm:spec_decode_num_drafts_total{model_name="m"} 100.0
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 300.0
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 120.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 80.0"""
SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 7.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1"} 7.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:spec_accept_length{model_name="m"} 2.9
sglang:num_retracted_requests_total{model_name="m"} 4.0
sglang:prompt_tokens_total{model_name="m"} 900.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 100.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 20.0
sglang:generation_tokens_total{model_name="m"} 55.0
"""
TGI = """\
# TYPE tgi_queue_size gauge
tgi_queue_size 5

# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 12

# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="+Inf"} 3
tgi_request_generated_tokens_sum 96
tgi_request_generated_tokens_count 3
tgi_request_skipped_tokens_sum 30
"""
LLAMACPP = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 1234
llamacpp:requests_processing 4
llamacpp:requests_deferred 46
llamacpp:kv_cache_usage_ratio 0.125
llamacpp:spec_decode_num_draft_tokens_total 240
llamacpp:spec_decode_num_accepted_tokens_total 60
llamacpp:spec_decode_num_drafts_total 80
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 32
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            OLD_VLLM,
            {"kv_used_share": 0.25, "running_requests": 3.0, "prefix_queried_tokens": 1000.0,
             "prefix_hit_tokens": 640.0, "drafts": 100.0, "drafted_tokens": 300.0, "accepted_tokens": 120.0},
        ),
        (
            SGLANG,
            {"running_requests": 7.0, "waiting_requests": 2.0, "kv_used_share": 0.5, "accepted_length_tokens": 2.9,
             "preemptions": 4.0, "prefix_queried_tokens": 900.0, "prefix_hit_tokens": 120.0, "output_tokens": 55.0},
        ),
        (
            TGI,
            {"running_requests": 12.0, "waiting_requests": 5.0, "output_tokens": 96.0, "accepted_tokens": 30.0},
        ),
        (
            LLAMACPP,
            {"running_requests": 4.0, "waiting_requests": 46.0, "kv_used_share": 0.125, "output_tokens": 1234.0,
             "drafts": 80.0, "drafted_tokens": 240.0, "accepted_tokens": 60.0},
        ),
        ("", {}),
        ("some_other_metric 3\n", {}),
    ],
)  # fmt: skip
def test_the_engines_names_are_read_as_one(text: str, expected: dict[str, float]) -> None:
    assert read(text) == expected


def test_of_several_data_parallel_ranks_counts_are_summed_and_shares_averaged() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{i}",model_name="a}} b"}} {n}\n'
        f'vllm:kv_cache_usage_perc{{engine="{i}"}} {n / 10} 1794702775\n'
        for i, n in enumerate((2.0, 4.0))
    )
    found = read(text)
    assert found["running_requests"] == 6.0
    assert found["kv_used_share"] == pytest.approx(0.3)


def test_a_value_that_is_not_a_number_is_none() -> None:
    assert read("llamacpp:requests_processing NaN\nllamacpp:requests_deferred what\n") == {}


# ---- accelerators ----


def test_nvml_is_kept_open_and_reports_what_holds_clocks_down(tmp_path: Path) -> None:
    nvml = Nvml()
    meter = Nvidia(nvml).meter(xeon(tmp_path))
    assert meter is not None and nvml.opened == 1
    first, second = meter.read(full=True)
    assert first.values == {
        "use_percent": 97.0,
        "memory_used_bytes": 5.0 * GiB,
        "power_w": 651.0,
        "energy_j": 123456.0,
        "clock_mhz": 1755.0,
        "memory_clock_mhz": 2619.0,
        "temperature_c": 61.0,
    }
    assert first.throttle == ["power cap"]  # clocks set by an application are no throttling
    assert second.throttle == []  # nor is rest
    assert "energy_j" not in meter.read(full=False)[0].values  # dear to read
    assert meter.absent == [] and "one-second average" in meter.notes[0]
    meter.close()
    assert nvml.opened == 0


def test_what_nvml_doesnt_report_is_left_out_and_listed(tmp_path: Path) -> None:
    old = Nvml(
        nvmlDeviceGetTotalEnergyConsumption=True,
        nvmlDeviceGetUtilizationRates=True,
        nvmlDeviceGetCurrentClocksEventReasons=True,
    )
    meter = Nvidia(old).meter(xeon(tmp_path))
    assert meter is not None
    [reading, _] = meter.read(full=True)
    assert (
        "energy_j" not in reading.values
        and "use_percent" not in reading.values
        and reading.throttle == []
    )
    assert meter.absent == ["accelerator 0, 1: use, energy counter not reported"]


def test_an_integrated_amd_gpu_reports_power_and_the_memory_that_it_shares(
    tmp_path: Path,
) -> None:
    root = strix_halo(tmp_path)
    card = root / "sys/class/drm/card0/device"
    lay(
        card,
        {
            "gpu_busy_percent": "88\n",
            "hwmon/hwmon3/power1_input": "64000000\n",
            "hwmon/hwmon3/freq1_input": "2800000000\n",
            "hwmon/hwmon3/temp1_input": "71000\n",
            "hwmon/hwmon3/temp1_label": "edge\n",
        },
    )
    meter = Amd().meter(root)
    assert meter is not None
    [reading] = meter.read(full=True)
    assert reading.values == {
        "use_percent": 88.0,
        "memory_used_bytes": 60.25 * GiB,
        "gtt_used_bytes": 60.0 * GiB,
        "power_w": 64.0,
        "clock_mhz": 2800.0,
        "temperature_c": 71.0,
    }
    lay(
        card,
        {"mem_info_gtt_used": str(70 * GiB), "hwmon/hwmon3/power1_input": "80000000\n"},
    )
    [reading] = meter.read(full=False)
    assert (reading.values["memory_used_bytes"], reading.values["power_w"]) == (
        70.25 * GiB,
        80.0,
    )
    assert "includes the CPU cores" in " ".join(meter.notes)
    assert any("no known energy counter" in why for why in meter.absent)


def gpu_metrics(energy_j: float, cycles: int, power: int, hot: int) -> bytes:
    """Revision 1.7, as an MI300X has it."""
    head = struct.pack("<HBB", 2208, 1, 7) + bytes(20)
    counts = struct.pack("<6I", cycles, 0, power, hot, 0, 0)
    return head + struct.pack("<QQ", int(energy_j * 2**16), 0) + counts + bytes(2208 - 64)


def test_an_mi300x_counts_its_energy_and_the_cycles_under_a_limit(tmp_path: Path) -> None:
    root = mi300x_in_cpx(tmp_path)
    card = root / "sys/class/drm/card1/device"
    lay(
        card,
        {
            "gpu_metrics": gpu_metrics(1000.0, 100, 50, 0),
            "hwmon/hwmon7/power1_input": "700000000",
            "hwmon/hwmon7/temp2_label": "junction",
            "hwmon/hwmon7/temp2_input": "90000",
        },
    )
    meter = Amd().meter(root)
    assert meter is not None
    lay(card, {"gpu_metrics": gpu_metrics(1500.0, 200, 130, 5)})
    readings = meter.read(full=True)
    assert len(readings) == 16
    assert readings[0].values["energy_j"] == 1500.0
    assert (readings[0].values["power_w"], readings[0].values["temperature_c"]) == (
        700.0,
        90.0,
    )
    assert readings[0].throttle == ["power cap"]  # 80 of 100 cycles; 5 of heat are let pass
    # power is the card's, reported once
    assert readings[1].values == {"memory_used_bytes": 0.0}
    assert readings[9].values["memory_used_bytes"] == 2 * GiB


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0, []),
        (1, ["power cap"]),
        (1 << 36 | 1 << 16, ["current", "heat"]),
        (2**64 - 1, []),
    ],
)
def test_the_limits_of_a_card_are_reported_by_bits(
    tmp_path: Path, bits: int, expected: list[str]
) -> None:
    lay(
        tmp_path,
        {
            "gpu_metrics": struct.pack("<HBB", 120, 1, 3)
            + bytes(108)
            + struct.pack("<Q", bits)
        },
    )
    file = sysfs.OpenFile.open(tmp_path / "gpu_metrics")
    assert file is not None
    assert GpuMetrics(file).read() == (None, expected)


# ---- the host ----

DEV = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n"


def test_the_host_reports_cores_memory_and_network_with_the_loopback_apart(
    tmp_path: Path,
) -> None:
    line = "{}: {} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0\n"
    root = lay(
        tmp_path,
        {
            "proc/stat": "cpu  100 0 50 9000 10 0 50 0 0 0\ncpu0 1 2 3\n",
            "proc/meminfo": "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  400 kB\n",
            "proc/net/dev": DEV
            + line.format("  lo", 500, 500)
            + line.format("eth0", 10, 20)
            + line.format("ib0", 1, 2),
            "sys/class/powercap/intel-rapl:0/name": "package-0\n",
            "sys/class/powercap/intel-rapl:0/energy_uj": "9000000\n",
            "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "10000000\n",
            "sys/class/powercap/intel-rapl:1/name": "psys\n",
        },
    )
    meter = HostMeter(root)
    tick = os.sysconf("SC_CLK_TCK")
    assert meter.read() == {
        "cpu_busy_s": 200 / tick,
        "memory_used_bytes": 600 * 1024.0,
        "network_received_bytes": 11.0,
        "network_sent_bytes": 22.0,
        "loopback_bytes": 500.0,
        "package_energy_j": 0.0,
    }
    lay(root, {"sys/class/powercap/intel-rapl:0/energy_uj": "2000000\n"})  # it went round
    assert meter.read()["package_energy_j"] == 3.0
    assert meter.absent == []


def test_what_a_host_doesnt_report_is_listed(tmp_path: Path) -> None:
    meter = HostMeter(tmp_path)
    assert meter.read() == {}
    assert [why.split(":")[0] for why in meter.absent] == ["host"] * 4


# ---- the sampler's process ----


def metrics_server(scripted: Callable[..., Scripted], texts: Iterator[str]) -> Scripted:
    """Answers each GET with the next text."""

    def talk(sock: socket.socket, _: int) -> None:
        while sock.recv(65536):
            body = next(texts).encode()
            sock.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )

    return scripted(talk)


def counting() -> Iterator[str]:
    n = 0
    while True:
        n += 1
        yield f"vllm:num_requests_running {n}\nvllm:generation_tokens_total {100 * n}\n"


def spec_of(folder: Path, **fields: Any) -> SamplerSpec:
    return SamplerSpec(
        **{
            "path": str(folder / "telemetry.jsonl"),
            "accelerators": False,
            "metrics": metric_names(),
            **fields,
        }
    )


def test_a_sampler_takes_all_before_and_after_the_load_and_is_cheap(
    tmp_path: Path, scripted: Callable[..., Scripted]
) -> None:
    server = metrics_server(scripted, counting())
    sampling = Sampler(
        spec_of(
            tmp_path, urls=[server.base_url], headers={"Authorization": "Bearer s3cret-key"}
        )
    )
    sampling.begin()
    start = now_ns()

    def during(source: str) -> int:
        samples, _ = sampler.read(tmp_path / "telemetry.jsonl")
        return sum(s.source == source and s.at_ns > start for s in samples)

    deadline = time.monotonic() + 120
    while during("host") < 5 or during("engine") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    seen = {(s.source, s.index): s for s in sampling.latest()}
    end = now_ns()
    sampling.end()
    samples, facts = sampler.read(tmp_path / "telemetry.jsonl")
    assert facts is not None and facts.ended
    # of a core. It aims at 1 %, and on a busy machine each reading takes longer
    assert facts.cost < 0.02
    engine = [s for s in samples if s.source == "engine"]
    host = [s for s in samples if s.source == "host"]
    for of in (engine, host):
        assert of[0].at_ns < start and of[-1].at_ns > end
    counts = [s.values["output_tokens"] for s in engine]
    assert counts == sorted(set(counts)) and len(engine) >= 3
    assert len([s for s in host if start < s.at_ns < end]) >= 5
    assert (
        seen["engine", 0].values["running_requests"] >= 2
        and "cpu_busy_cores" in seen["host", 0].values
    )
    assert "accelerators: the server is on another machine" in facts.absent
    assert "s3cret" not in (tmp_path / "telemetry.jsonl").read_text()


def test_metrics_that_are_dear_to_render_are_asked_for_less_often(
    tmp_path: Path, scripted: Callable[..., Scripted]
) -> None:
    def slow() -> Iterator[str]:
        for text in counting():
            time.sleep(0.09)
            yield text

    server = metrics_server(scripted, slow())
    sampling = Sampler(spec_of(tmp_path, urls=[server.base_url], engine_interval_s=0.05))
    sampling.begin()
    time.sleep(0.5)
    sampling.end()
    samples, facts = sampler.read(tmp_path / "telemetry.jsonl")
    assert facts is not None and facts.engine_interval_s >= 9.0  # 90 ms are 1 % of that
    assert len([s for s in samples if s.source == "engine"]) == 2  # before and after


def test_accelerators_that_are_dear_to_read_are_read_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dear:
        absent: list[str] = []
        notes: list[str] = []

        def read(self, full: bool) -> list[AcceleratorReading]:
            until = time.thread_time() + 0.006
            while time.thread_time() < until:
                pass
            return [AcceleratorReading({"power_w": 1.0}, [])]

    monkeypatch.setattr(accelerators, "meters", lambda root: [Dear()])
    its = loop.Loop(spec_of(tmp_path, accelerators=True))
    its._tick()
    assert 0.9 < its._interval_s < 5.0  # 6 ms are 0.6 % of a second


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 no\r\ncontent-length: 0\r\n\r\n", "answers 404"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            "has no metrics that dyno knows",
        ),
        (b"", "closed the connection before it answered"),
    ],
)
def test_a_server_without_metrics_is_reported(
    tmp_path: Path, scripted: Callable[..., Scripted], answer: bytes, said: str
) -> None:
    server = scripted(lambda sock, _: (sock.recv(65536), sock.sendall(answer)))
    sampling = Sampler(spec_of(tmp_path, urls=[server.base_url]))
    sampling.begin()
    sampling.end()
    samples, facts = sampler.read(tmp_path / "telemetry.jsonl")
    assert facts is not None and any(said in why for why in facts.absent)
    assert {s.source for s in samples} == {"host"}


def child_of(sampling: Sampler) -> subprocess.Popen[bytes]:
    assert sampling._child is not None
    return sampling._child._process


def test_a_sampler_that_is_killed_is_reported_and_harms_nothing(tmp_path: Path) -> None:
    sampling = Sampler(spec_of(tmp_path))
    sampling.begin()
    child_of(sampling).kill()
    child_of(sampling).wait()
    assert [s.source for s in sampling.latest()] == ["host"]
    sampling.end()
    sampling.end()  # a second time does nothing
    samples, facts = sampler.read(tmp_path / "telemetry.jsonl")
    assert samples and facts is not None and not facts.ended
    assert facts.absent[-1] == "the sampler died (code -9)"


def test_a_sampler_that_hangs_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_ENDED_S", 0.3)
    sampling = Sampler(spec_of(tmp_path))
    sampling.begin()
    child = child_of(sampling)
    child.send_signal(signal.SIGSTOP)
    sampling.end()
    assert child.poll() == -9
    _, facts = sampler.read(tmp_path / "telemetry.jsonl")
    assert facts is not None and facts.absent[-1] == "the sampler didn't stop within 0.3 s"


def test_a_sampler_that_cant_be_started_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    sampling = Sampler(spec_of(tmp_path))
    sampling.begin()
    assert sampling.latest() == []
    sampling.end()
    assert sampler.read(tmp_path / "telemetry.jsonl")[1].absent == [  # type: ignore[union-attr]
        "the sampler couldn't start (No such file or directory)"
    ]


def test_a_sampler_whose_file_cant_be_written_is_reported_nowhere_and_harms_nothing(
    tmp_path: Path,
) -> None:
    sampling = Sampler(spec_of(tmp_path / "none"))
    sampling.begin()
    assert sampling.latest() == []
    sampling.end()


def test_a_killed_dyno_leaves_no_sampler_behind(tmp_path: Path) -> None:
    code = (
        "import time; from dyno.facts.telemetry import SamplerSpec\n"
        "from dyno.probe.telemetry.sampler import Sampler\n"
        f"s = Sampler(SamplerSpec({str(tmp_path / 'telemetry.jsonl')!r}, accelerators=False)); s.begin()\n"
        "print(s._child._process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    pid = int(parent.stdout.readline())
    process = psutil.Process(pid)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 120
    while (
        process.is_running()
        and process.status() != psutil.STATUS_ZOMBIE
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    _, facts = sampler.read(tmp_path / "telemetry.jsonl")
    assert facts is not None and facts.ended  # it had time for a last word


# ---- figures ----

LOAD = Window(10 * NS_PER_S, 20 * NS_PER_S)
FACTS = SamplerFacts(0, 0.2, 1.0, cost=0.002, ticks=50, ended=True)
RIG = Rig(
    "Debian",
    "6",
    "x86_64",
    "cpu",
    8,
    accelerators=[Accelerator(0, "H100", "nvidia", engine=True)],
)


def at(
    s: float,
    source: Any = "accelerator",
    index: int = 0,
    throttle: list[str] | None = None,
    **values: float,
) -> Sample:
    return Sample(int(s * NS_PER_S), source, index, values, throttle or [])


def summed(*samples: Sample, tokens: int = 1000, **more: Any) -> TelemetrySummary:
    return summarize(
        samples, FACTS, **{"window": LOAD, "output_tokens": tokens, "rig": RIG, **more}
    )


def test_energy_is_the_counters_difference_and_the_warm_up_stays_out() -> None:
    t = summed(
        at(5, power_w=500, energy_j=0),  # the warm-up's
        at(9, power_w=100, energy_j=2000),
        at(10, power_w=300, energy_j=2100),
        at(15, power_w=300, energy_j=3600),
        at(20, power_w=300, energy_j=5100),
        at(21, power_w=100, energy_j=5200),
    )
    [a] = t.accelerators
    assert (a.energy_j, a.energy_by, a.energy_by_power_j) == (3000.0, "counter", 3000.0)
    assert (a.power_mean_w, a.power_peak_w, a.samples, a.engine) == (300.0, 300.0, 3, True)
    assert (t.energy_j, t.energy_per_output_token_j, t.power_mean_w) == (3000.0, 3.0, 300.0)


def test_a_counter_is_read_at_the_loads_ends_between_samples() -> None:
    t = summed(
        at(8, energy_j=0),
        at(12, energy_j=400),
        at(18, energy_j=1000),
        at(22, energy_j=1200),
    )
    assert t.energy_j == 1100 - 200


def test_without_a_counter_energy_is_power_over_time() -> None:
    t = summed(
        at(9, power_w=100), at(11, power_w=300), at(19, power_w=300), at(21, power_w=100)
    )
    [a] = t.accelerators
    # 200 W at the load's ends: two seconds of 250 W, eight of 300 W.
    assert (a.energy_j, a.energy_by, a.energy_by_power_j) == (2900.0, "power", None)
    assert t.energy_per_output_token_j == 2.9


def test_samples_that_end_before_the_load_give_no_energy() -> None:
    t = summed(
        at(9, power_w=100, energy_j=1),
        at(11, power_w=300, energy_j=2),
        at(15, power_w=300, energy_j=3),
    )
    assert (t.energy_j, t.accelerators[0].power_mean_w) == (None, 300.0)
    assert "accelerator 0 reports no energy" in t.absent[-1]


def test_an_energy_counter_that_went_back_isnt_believed() -> None:
    t = summed(at(9, energy_j=500), at(15, energy_j=900), at(21, energy_j=10))
    assert t.energy_j is None


def test_means_are_over_time_and_not_over_samples() -> None:
    t = summed(
        at(9, use_percent=0),
        at(10, use_percent=100),
        at(11, use_percent=100),
        at(12, use_percent=0),
        at(20, use_percent=0),
    )
    # one second whole, one half, of ten
    assert t.accelerators[0].use_mean_percent == pytest.approx(15.0)


def test_peaks_clocks_and_throttling_are_of_the_load_alone() -> None:
    t = summed(
        at(9, memory_used_bytes=9e9, clock_mhz=200, temperature_c=99, throttle=["heat"]),
        at(11, memory_used_bytes=5e9, gtt_used_bytes=4e9, clock_mhz=1900, temperature_c=60),
        at(
            19,
            memory_used_bytes=6e9,
            gtt_used_bytes=5e9,
            clock_mhz=1500,
            temperature_c=70,
            throttle=["power cap"],
        ),
        engine=EngineFacts("vllm", "1", [], memory_loaded_bytes={0: 4 * 10**9}),
    )
    [a] = t.accelerators
    assert (a.memory_after_load_bytes, a.memory_peak_bytes, a.gtt_peak_bytes) == (
        4 * 10**9,
        6 * 10**9,
        5 * 10**9,
    )
    assert (a.clock_min_mhz, a.temperature_max_c, a.throttled) == (
        1500,
        70,
        {"power cap": 0.5},
    )


def both(**values: float) -> list[Sample]:
    return [at(s, index=i, power_w=100.0, **values) for s in (9, 15, 21) for i in (0, 1)]


UNKNOWN = Rig(
    "Debian",
    "6",
    "x86_64",
    "cpu",
    8,
    accelerators=[Accelerator(i, "H100", "nvidia") for i in (0, 1)],
)


def test_the_engines_accelerators_are_those_whose_memory_grew() -> None:
    up = EngineFacts(
        "vllm",
        "1",
        [],
        memory_before_bytes={0: 0, 1: 0},
        memory_loaded_bytes={0: GiB, 1: 1 << 20},
    )
    t = summed(*both(), rig=UNKNOWN, engine=up)
    assert [a.engine for a in t.accelerators] == [True, False] and t.energy_j == 1000.0


def test_an_engine_on_the_processors_has_no_accelerators_energy() -> None:
    up = EngineFacts(
        "llamacpp", "1", [], memory_loaded_bytes={0: 0, 1: 0}, resident_bytes=123
    )
    t = summed(*both(use_percent=50), rig=UNKNOWN, engine=up)
    assert (t.energy_j, t.energy_per_output_token_j, t.engine_resident_bytes) == (
        None,
        None,
        123,
    )
    assert "the engine's accelerators are unknown" in t.absent[-1]


def test_where_nothing_else_reports_the_accelerators_at_work_are_the_engines() -> None:
    idle = [
        msgspec.structs.replace(s, values={**s.values, "use_percent": 0.0})
        for s in both()
        if s.index == 1
    ]
    t = summed(*[s for s in both(use_percent=90) if s.index == 0], *idle, rig=UNKNOWN)
    assert [a.engine for a in t.accelerators] == [True, False] and t.energy_j == 1000.0
    assert "processes are unknown" in t.notes[-1]
    assert summed(*both(use_percent=1), rig=UNKNOWN).energy_j is None


def test_the_energy_of_a_card_in_parts_is_that_of_all_its_parts() -> None:
    parts = [
        Accelerator(
            i, "MI300X", "amd", bus="0000:05:00.0", partition="CPX/NPS1", engine=True
        )
        for i in (0, 1)
    ]
    samples = [at(s, power_w=700, energy_j=700 * s) for s in (9, 21)] + [
        at(s, index=1, use_percent=1) for s in (9, 21)
    ]
    rig = msgspec.structs.replace(UNKNOWN, accelerators=parts)
    t = summed(*samples, rig=rig)
    assert t.energy_j == 7000.0 and "a partition of a card" in t.notes[-1]


def engine_at(s: float, **values: float) -> Sample:
    return at(s, source="engine", **values)


def test_the_engines_counters_are_taken_around_the_load_and_its_gauges_in_the_steady_window() -> (
    None
):
    window = Window(10 * NS_PER_S, 20 * NS_PER_S, (12 * NS_PER_S, 18 * NS_PER_S))
    t = summed(
        engine_at(5, preemptions=1, output_tokens=10, prefix_queried_tokens=5),
        engine_at(9.9, preemptions=3, output_tokens=100, prefix_queried_tokens=50, running_requests=0),
        engine_at(11, preemptions=3, output_tokens=200, running_requests=2, kv_used_share=0.1, waiting_requests=9),
        engine_at(13, preemptions=4, output_tokens=300, running_requests=8, kv_used_share=0.5, waiting_requests=0),
        engine_at(15, preemptions=4, output_tokens=350, running_requests=8, kv_used_share=0.7, waiting_requests=0),
        engine_at(17, preemptions=5, output_tokens=400, running_requests=8, kv_used_share=0.9, waiting_requests=0),
        engine_at(20.1, preemptions=5, output_tokens=1100, prefix_queried_tokens=950, prefix_hit_tokens=30,
                  running_requests=0, drafts=100, drafted_tokens=300, accepted_tokens=150),
        engine_at(25, preemptions=9, output_tokens=9999),
        window=window,
    )  # fmt: skip
    [e] = t.engines
    assert (e.preemptions, e.output_tokens, e.prefix_queried_tokens) == (2, 1000, 900)
    assert e.prefix_hit_tokens == 30  # shown from its first count on
    assert (e.running_mean, e.running_peak, e.waiting_mean, e.waiting_peak) == (
        8.0,
        8.0,
        0.0,
        9.0,
    )
    assert (e.kv_mean_share, e.kv_peak_share, e.samples) == (pytest.approx(0.7), 0.9, 4)
    assert (e.drafted_tokens, e.accepted_tokens, e.accepted_length_mean) == (300, 150, 2.5)
    assert (t.acceptance, t.accepted_length) == (0.5, 2.5)


def test_an_engine_that_was_restarted_is_reported_and_gives_no_negative_count() -> None:
    t = summed(
        engine_at(9, output_tokens=500),
        engine_at(15, output_tokens=20),
        engine_at(21, output_tokens=900),
    )
    assert (t.engines[0].restarted, t.engines[0].output_tokens) == (True, None)


def test_a_gauge_that_was_never_sampled_under_the_load_is_not_a_zero() -> None:
    t = summed(engine_at(9.9, running_requests=0), engine_at(20.1, running_requests=0))
    assert (t.engines[0].running_mean, t.engines[0].running_peak, t.engines[0].samples) == (
        None,
        None,
        0,
    )


def test_the_hosts_figures() -> None:
    t = summed(
        at(
            9,
            source="host",
            cpu_busy_s=100,
            memory_used_bytes=1e9,
            loopback_bytes=0,
            package_energy_j=10,
        ),
        at(
            15,
            source="host",
            cpu_busy_s=112,
            memory_used_bytes=3e9,
            loopback_bytes=600,
            package_energy_j=610,
        ),
        at(
            21,
            source="host",
            cpu_busy_s=124,
            memory_used_bytes=9e9,
            loopback_bytes=1200,
            package_energy_j=1210,
        ),
    )
    assert t.host is not None
    assert (t.host.cpu_mean_cores, t.host.memory_peak_bytes, t.host.loopback_bytes) == (
        2.0,
        3 * 10**9,
        1000,
    )
    assert t.host.package_energy_j == 1000.0 and t.host.network_sent_bytes is None
    assert t.longest_gap_s == 5.0


def test_a_sampler_that_was_cut_off_is_reported() -> None:
    cut = msgspec.structs.replace(FACTS, ended=False)
    assert "stopped early" in summarize([], cut, LOAD, 1).absent[-1]


# ---- a whole trial ----


def a_trial(**target: Any) -> TrialSpec:
    return TrialSpec(
        target=TargetSpec(
            **{"base_url": "", "backend": "openai", "endpoint": "/v1/completions", **target}
        ),
        workload=WorkloadSpec(
            "random", num_prompts=40, num_warmups=2, input_len=8, output_len=60
        ),
        load=LoadSpec(max_concurrency=8),
        ignore_eos=True,
    )


def test_a_trial_on_an_engine_has_the_hosts_and_the_engines_telemetry(
    tmp_path: Path,
) -> None:
    class Seen(Watcher):
        latest: list[Sample] = []
        sampler: Sampler | None = None  # not before the load: the warm-up has progress, too

        def sampling(self, sampler: Sampler) -> None:
            self.sampler = sampler

        def progress(self, progress: Any) -> None:
            self.latest = self.sampler.latest() if self.sampler else []

    watcher = Seen()
    spec = msgspec.structs.replace(
        a_trial(),
        engine=EngineSpec("fake", args=["first_ms=20", "gap_ms=8"]),
        correctness_check=False,
    )
    outcome = trial.serve(spec, runs=tmp_path, headers={}, watcher=watcher)
    t = outcome.result.telemetry
    assert t is not None and t.host is not None and t.host.cpu_mean_cores is not None
    assert t.host.samples >= 2 and t.cost < 0.05
    [engine] = t.engines
    assert engine.output_tokens == 40 * 60  # without the warm-up's
    assert engine.preemptions == 0 and engine.samples >= 1
    assert (
        engine.kv_peak_share is not None
        and engine.kv_peak_share < 1
        and 0 < (engine.running_peak or 0) <= 8
    )
    assert t.engine_resident_bytes and t.engine_resident_bytes > 1 << 20
    assert {s.source for s in watcher.latest} >= {"host", "engine"}

    m = outcome.manifest
    printed = result_json.build(outcome.result, m, read_row(outcome.run))
    assert (
        json.loads(msgspec.json.encode(printed))["dyno"]["telemetry"]["engines"][0][
            "preemptions"
        ]
        == 0
    )
    labels = [label for label, _ in telemetry_pairs(t)]
    assert "Engine: KV cache used, peak:" in labels and "Accelerators:" not in labels

    again = trial.finish(outcome.run)  # from what lies in the folder
    assert again.result.telemetry == t
    outcome.run.telemetry_path.unlink()  # as a run of an older version
    old = msgspec.to_builtins(trial.finish(outcome.run).result)
    assert old.pop("telemetry") is None
    assert msgspec.convert(old, Result).telemetry is None


def test_of_a_server_elsewhere_no_accelerator_of_this_machine_is_sampled(
    tmp_path: Path,
) -> None:
    run, session = trial.Run(tmp_path), Session(TargetFacts(model="m"), {})
    assert not trial._sampled(
        run, a_trial(base_url="http://10.0.0.7:8000"), session
    ).accelerators
    assert trial._sampled(
        run, a_trial(base_url="http://127.0.0.1:8000"), session
    ).accelerators


def test_a_trial_whose_sampler_cant_be_started_continues(
    tmp_path: Path, fake: StartFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fake()
    monkeypatch.setattr(sys, "executable", "/nothing/here")
    outcome = trial.serve(a_trial(base_url=server.base_url), runs=tmp_path, headers={})
    assert outcome.result.served.completed == 40
    t = outcome.result.telemetry
    assert t is not None and t.host is None and "couldn't start" in t.absent[0]


def test_several_urls_have_their_metrics_apart(tmp_path: Path, fake: StartFake) -> None:
    urls = [fake(first_ms=n).base_url for n in (10.0, 11.0)]
    outcome = trial.serve(
        a_trial(base_url=urls[0], more_urls=urls[1:]), runs=tmp_path, headers={}
    )
    t = outcome.result.telemetry
    assert t is not None and [e.index for e in t.engines] == [0, 1]
    assert t.total("output_tokens") == 40 * 60


def test_a_failed_warm_up_leaves_no_sampler(tmp_path: Path, fake: StartFake) -> None:
    server = fake(faults={"500": 1})
    with pytest.raises(TargetError):
        trial.serve(a_trial(base_url=server.base_url), runs=tmp_path, headers={})
    children = psutil.Process().children()
    assert not [c for c in children if "dyno.probe.telemetry" in " ".join(c.cmdline())]
