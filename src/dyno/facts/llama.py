"""llama.cpp's own flags, in every spelling of llama-server and llama-bench, by the names that their reports use."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# what llama-bench or a server's log says that it did: name → value
Report = Mapping[str, Any]

# A setting, as llama-bench's report names it → its flags, the longest last. A value follows.
_VALUED = {
    "model_filename": "-m --model",
    "n_gpu_layers": "-ngl --gpu-layers --n-gpu-layers", "n_cpu_moe": "-ncmoe --n-cpu-moe",
    "split_mode": "-sm --split-mode", "load_mode": "-lm --load-mode", "main_gpu": "-mg --main-gpu",
    "tensor_split": "-ts --tensor-split", "tensor_buft_overrides": "-ot --override-tensor",
    "n_batch": "-b --batch-size", "n_ubatch": "-ub --ubatch-size", "type_k": "-ctk --cache-type-k",
    "type_v": "-ctv --cache-type-v", "defrag_thold": "-dt --defrag-thold", "n_threads": "-t --threads",
    "cpu_mask": "-C --cpu-mask", "numa": "--numa", "poll": "--poll",
    # The server alone has these.
    "n_parallel": "-np --parallel", "n_ctx": "-c --ctx-size", "n_cache_reuse": "--cache-reuse",
}  # fmt: skip
# On or off: a value may follow. The second ones turn it off.
_SWITCHES = {
    "use_mmap": ("-mmp --mmap", "--no-mmap"),
    "no_host": ("--no-host", ""),
    "no_op_offload": ("-nopo --no-op-offload", "--op-offload"),
    "no_kv_offload": ("-nkvo --no-kv-offload", "-kvo --kv-offload"),
    "flash_attn": ("-fa --flash-attn", ""),
    "cpu_strict": ("--cpu-strict", ""),
    "mlock": ("--mlock", ""),
    "kv_unified": ("-kvu --kv-unified", "-no-kvu --no-kv-unified"),
    "cont_batching": ("-cb --cont-batching", "-nocb --no-cont-batching"),
}
NAMES = {key: names.split() for key, names in _VALUED.items()}
NAMES |= {key: on.split() for key, (on, _) in _SWITCHES.items()}
AUTO = -1
_TRUTH = {
    "1": 1,
    "on": 1,
    "true": 1,
    "enabled": 1,
    "0": 0,
    "off": 0,
    "false": 0,
    "disabled": 0,
}
_FLASH = {**_TRUTH, "auto": AUTO, "-1": AUTO}
_KEYS = {name: key for key, names in NAMES.items() for name in names}
_OFF = {name: key for key, (_, names) in _SWITCHES.items() for name in names.split()}


class LlamaSetting(NamedTuple):
    """A setting in a command line."""

    key: str
    value: Any  # as a report has it: a switch is 1, 0 or AUTO
    words: tuple[str, ...]  # as typed, without =

    def __str__(self) -> str:
        return " ".join(self.words)


def truth(key: str, word: str) -> int | None:
    """Return the value of a switch; None: the word is none."""
    return (_FLASH if key == "flash_attn" else _TRUTH).get(word.lower())


def split(args: Sequence[str]) -> Iterator[LlamaSetting | str]:
    """Yield the settings of a command line; each other word, and each that can't be read, as it is."""
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        key = _KEYS.get(name)
        if name in _OFF:
            yield LlamaSetting(_OFF[name], 0, (name,))
            continue
        if key is None:
            yield word
            continue
        follows = not equals and bool(rest)
        if follows:
            value = rest[0]
        setting = _parse_setting(key, name, value) if equals or follows else None
        if setting is not None:
            yield setting
            if follows:
                rest.pop(0)
        elif key in _SWITCHES and not equals:
            yield LlamaSetting(key, 1, (name,))
        else:
            yield word


def _parse_setting(key: str, name: str, value: str) -> LlamaSetting | None:
    """Return a setting with its value; None: the word is not a value of this switch."""
    if key not in _SWITCHES:
        return LlamaSetting(
            key, int(value) if re.fullmatch(r"-?\d+", value) else value, (name, value)
        )
    on = truth(key, value)
    return LlamaSetting(key, on, (name, value)) if on is not None else None


def given(args: Sequence[str]) -> dict[str, LlamaSetting]:
    """Return the settings of a command line by name; of several, the last."""
    return {g.key: g for g in split(args) if isinstance(g, LlamaSetting)}


def completed(report: Report) -> Report:
    """Add the names of earlier or later builds: use_mmap became load_mode."""
    if "load_mode" in report and report["load_mode"] != "auto":
        return {"use_mmap": str(report["load_mode"]).startswith("mmap"), **report}
    if "use_mmap" in report and "load_mode" not in report:
        return {"load_mode": "mmap" if report["use_mmap"] else "none", **report}
    return report


def differences(command: Sequence[str], report: Report, program: str) -> Iterator[str]:
    """Yield a sentence for each setting of a command that the program reports with another value."""
    report = completed(report)
    for asked in given(command).values():
        served = report.get(asked.key)
        if served is None:
            continue
        try:
            agree = _agree(asked, served, report)
        except (ValueError, TypeError):  # it isn't even of that kind
            agree = False
        if not agree:
            shown = int(served) if isinstance(served, bool) else served
            yield f"{asked} was asked for, but {program} reports {asked.key} {shown}"


def _agree(asked: LlamaSetting, served: Any, report: Report) -> bool:
    key, value = asked.key, asked.value
    if key in _SWITCHES:
        return _switches_agree(key, value, served)
    # a server reports what it did; below 0: as many as fit
    if key == "n_gpu_layers" and "n_layers" in report:
        return (
            value in ("auto", "all")
            or value < 0
            or served == min(value, report["n_layers"])
        )
    if key in _WITHIN and "n_ctx" in report:
        return bool(served == min(value, *(report[other] for other in _WITHIN[key])))
    if key == "n_ctx":  # rounded up; 0: the model's
        return bool(served >= value)
    normal: Callable[[Any], Any] = _NORMAL.get(key, _lower)
    return bool(normal(value) == normal(served))


def _switches_agree(key: str, value: int, served: Any) -> bool:
    """Compare switches. A server that chose by itself reports the choice; an old llama-bench reads auto as 0."""
    on = truth(key, str(int(served) if isinstance(served, bool) else served))
    return on == value or (value == AUTO and on == 1)


def _lower(value: Any) -> str:
    return str(value).lower()


def _file_name(value: Any) -> str:
    return str(value).rpartition("/")[2]


def _mask(value: Any) -> int:
    return int(str(value), 16)


def _shares(value: Any) -> list[float]:
    """Read 3/1 or 3,1 as [3.0, 1.0]; llama-bench prints two digits, and no zeros at the end."""
    shares = [round(float(word), 2) for word in re.split(r"[,;/]", str(value))]
    while len(shares) > 1 and not shares[-1]:
        shares.pop()
    return shares


# A server cuts its batches to its context.
_WITHIN = {"n_batch": ["n_ctx"], "n_ubatch": ["n_ctx", "n_batch"]}
# How to read a setting before two of them are compared.
_NORMAL: dict[str, Callable[[Any], Any]] = {
    "tensor_split": _shares,
    "model_filename": _file_name,
    "cpu_mask": _mask,
    "defrag_thold": float,
}
