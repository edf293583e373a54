"""From the cells of one point of the grid to a trial: defaults filled in, parts held against each other."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.metric import GOODPUT
from dyno.facts.offline import OfflineSpec
from dyno.facts.target import CONTROL, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.facts.workload import MOST_PROMPTS, WorkloadSpec
from dyno.http import Url, check_plain
from dyno.study.cells import CELLS, OFFLINE, SERVING, TRANSPORT, converted
from dyno.study.document import Path, TomlDocument
from dyno.study.grid import GridCell, Section

_DURATION_PROMPTS = 1000  # prepared for a closed loop that runs for a time; then they are sent again
# Counted for each engine in its own words elsewhere; in a study the same for all, so that they can be compared.
_SAMPLING = {"temperature": 0.0}
_PERCENTILES = [50.0, 90.0, 95.0, 99.0]
_WARMUPS = 8  # where no concurrency says better


class Known(NamedTuple):
    """Engines, backends and datasets that dyno has, handed in: this room imports none of them."""

    backends: Mapping[str, str]  # engine kind → its backend
    attached: frozenset[str]  # kinds that are not started
    paths: Mapping[str, str]  # backend → its route
    fields: Mapping[str, frozenset[str] | None]  # backend → the fields it takes; None: any
    datasets: list[str]
    prompts_needed: Callable[[LoadSpec], int | None]


class Trials:
    def __init__(self, document: TomlDocument, known: Known, folder: FilePath) -> None:
        self.doc, self.known, self.folder = document, known, folder

    def trial(self, sections: dict[str, Section], cell: GridCell) -> TrialSpec | None:
        values: dict[str, dict[str, Any]] = {}
        for part, section in sections.items():
            cells = {k: self._relative(k, v) for k, v in cell.sections[part].items()}
            values[part] = {
                k: value
                for k, v in cells.items()
                if (value := converted(self.doc, section.paths[k], CELLS[part][k], v)) is not None
            }
        engine, target = self._engine(values["engine"], sections["engine"])
        if engine is None or target is None:
            return None
        load, offline = self._load(values["load"], sections["load"])
        workload = self._workload(values, sections, load, offline)
        if workload is None:
            return None
        t = values["trial"]
        self._check_figures(t, sections["trial"])
        sampling = t.pop("sampling", _SAMPLING)
        fields = self.known.fields[target.backend]
        if fields is not None:
            unknown = sorted({*sampling, *t.get("extra_body", {})} - fields)
            if unknown and "sampling" in cell.sections["trial"] | t:
                where = (
                    sections["trial"].paths.get("sampling") or sections["trial"].paths.get("extra_body") or ("trial",)
                )
                self.doc.mistake(where, f"the backend {target.backend} has no {', '.join(unknown)}.")
            sampling = {k: v for k, v in sampling.items() if k in fields}
        return TrialSpec(
            target=target,
            workload=workload,
            load=load,
            sampling=sampling,
            ignore_eos=t.pop("ignore_eos", workload.dataset == "random"),
            percentiles=t.pop("percentiles", _PERCENTILES),
            reset_cache=t.pop("cache", "empty") == "empty",
            kind=offline.kind if offline else "serve",
            offline=offline,
            engine=engine,
            **t,
        )

    def _check_figures(self, t: dict[str, Any], section: Section) -> None:
        if not all(0 < p < 100 for p in t.get("percentiles", [])):
            self.doc.mistake(section.paths["percentiles"], f"lie between 0 and 100, and are {t['percentiles']}.")
        for name, limit in t.get("goodput_ms", {}).items():
            where = (*section.paths["goodput_ms"], name)
            if name not in GOODPUT:
                self.doc.unknown(where, list(GOODPUT), "latency")
            elif limit < 0:
                self.doc.mistake(where, f"a latency limit can't be negative, and is {limit:g}.")

    def _relative(self, key: str, value: Any) -> Any:
        """Resolve a path that begins with a dot from the study's folder."""
        pathlike = key in (
            "model", "draft_model", "path", "tokenizer", "python", "binary", "cacert", "cert", "cert_key",
        )  # fmt: skip
        if pathlike and isinstance(value, str) and value.startswith(("./", "../")):
            return str((self.folder / value).resolve())
        return value

    def _engine(self, cells: dict[str, Any], section: Section) -> tuple[EngineSpec | None, TargetSpec | None]:
        where = _beside(section, ("engines",))
        kind = cells.get("kind")
        if kind is None:
            self.doc.mistake(where, f"has no kind. It is one of {', '.join(self.known.backends)}.")
            return None, None
        if kind not in self.known.backends:
            self.doc.unknown((*section.paths["kind"], kind), list(self.known.backends), "kind of engine")
            return None, None
        urls = cells.pop("base_url", [])
        urls = [urls] if isinstance(urls, str) else urls
        cells.pop("api_key_env", None)
        backend = cells.pop("backend", self.known.backends[kind])
        if backend not in self.known.paths:
            self.doc.unknown((*section.paths["backend"], backend), list(self.known.paths), "backend")
            return None, None
        if kind in self.known.attached and not urls:
            self.doc.mistake(where, f"is of the kind {kind}, a server that runs: give its base_url.")
            return None, None
        if urls and kind not in self.known.attached:
            self.doc.mistake(section.paths["base_url"], f"dyno starts {kind} itself; a running one is kind = 'openai'.")
            return None, None
        for url in urls:
            try:
                Url(url)
            except UsageError as e:
                self.doc.mistake(section.paths["base_url"], str(e))
        endpoint = cells.pop("endpoint", self.known.paths[backend])
        try:
            check_plain(endpoint, "it")
        except UsageError as e:
            self.doc.mistake(section.paths["endpoint"], str(e))
        for key in ("model", "served_name"):
            if CONTROL.search(cells.get(key) or ""):
                self.doc.mistake(section.paths[key], "holds a control character, such as a line end.")
        transport = {key: cells.pop(key) for key in TRANSPORT if key in cells}
        for key in ("insecure", "cacert", "cert", "cert_key"):
            if key in transport and not urls:
                self.doc.mistake(section.paths[key], "is for a server that runs: give its base_url.")
        base, *more = urls or [""]
        target = TargetSpec(base, backend, endpoint, cells.get("model"), more_urls=more, **transport)
        return EngineSpec(**cells), target

    def _load(self, cells: dict[str, Any], section: Section) -> tuple[LoadSpec, OfflineSpec | None]:
        kind = cells.get("kind", "serve")
        wrong = [k for k in cells if k in (OFFLINE if kind == "serve" else SERVING)]
        for key in wrong:
            which = "an offline load (kind = 'throughput', 'latency', 'micro')" if kind == "serve" else "kind = 'serve'"
            self.doc.mistake(section.paths[key], f"belongs to {which}, and this one is {kind!r}.")
        if kind != "serve":
            return LoadSpec(), OfflineSpec(kind, **{k: v for k, v in cells.items() if k in OFFLINE})
        serving = {k: v for k, v in cells.items() if k in SERVING}
        if not serving.keys() & {"max_concurrency", "request_rate_rps", "ramp"}:
            self.doc.mistake(
                _beside(section, ("loads",)), "says nothing of when to send: give max_concurrency, request_rate_rps "
                "(inf: all at once) or ramp.",
            )  # fmt: skip
        if "burstiness" in serving and serving.get("request_rate_rps") is None and "ramp" not in serving:
            self.doc.mistake(section.paths["burstiness"], "is about the gaps of a rate: give request_rate_rps.")
        if {"num_prompts", "requests_per_stream"} <= cells.keys():
            self.doc.mistake(
                section.paths["requests_per_stream"], "says how many, and so does num_prompts: one of them."
            )
        for key in ("request_rate_rps", "burstiness"):
            if serving.get(key) == math.inf:
                serving[key] = None
        load = LoadSpec(**serving)
        if load.ramp and (load.ramp_start_rps is None or load.ramp_end_rps is None):
            self.doc.mistake(section.paths["ramp"], "needs ramp_start_rps and ramp_end_rps.")
        if load.duration_s and load.closed_loop and load.max_concurrency is None:
            self.doc.mistake(section.paths["duration_s"], "needs max_concurrency, a rate or a ramp.")
        return load, None

    def _workload(
        self,
        values: dict[str, dict[str, Any]],
        sections: dict[str, Section],
        load: LoadSpec,
        offline: OfflineSpec | None,
    ) -> WorkloadSpec | None:
        cells, how, section = values["workload"], values["load"], sections["workload"]
        dataset = cells.setdefault("dataset", "random")
        if dataset not in self.known.datasets:
            self.doc.unknown((*section.paths["dataset"], dataset), self.known.datasets, "dataset")
            return None
        self._check_prompts(cells, section, micro=offline is not None and offline.kind == "micro")
        streams = load.max_concurrency
        count = how.get("num_prompts")
        if offline and offline.kind == "latency":
            if count is not None:
                self.doc.mistake(
                    sections["load"].paths["num_prompts"], "how many requests a latency load has is its batch_size."
                )
            count = offline.batch_size or 8  # as vLLM's; what a workload says is for other loads
        if count is None and (each := how.get("requests_per_stream")):
            if streams is None:
                where = sections["load"].paths["requests_per_stream"]
                self.doc.mistake(where, "needs max_concurrency: it counts requests for each of its streams.")
            count = max(1, round(each * (streams or 1)))
        if count is None:
            count = cells.get("num_prompts") or self.known.prompts_needed(load)
        if count is not None and count > MOST_PROMPTS:
            self.doc.mistake(_beside(section, ("workloads",)), f"would be of {count:,} requests.")
            return None
        if count is None and load.duration_s:
            count = max(_DURATION_PROMPTS, 20 * (streams or 1))
        if count is None and offline:
            count = 1 if offline.kind == "micro" else 1000  # as vLLM's procedure does
        if count is None:
            self.doc.mistake(
                _beside(section, ("workloads",)), "doesn't say how many requests: give num_prompts here or in the "
                "load, or the load's requests_per_stream or duration_s.",
            )  # fmt: skip
            return None
        warmups = how.get("num_warmups", cells.get("num_warmups", 0 if offline else min(streams or _WARMUPS, count)))
        return WorkloadSpec(**{**cells, "num_prompts": count, "num_warmups": warmups})

    def _check_prompts(self, cells: dict[str, Any], section: Section, micro: bool) -> None:
        dataset = cells["dataset"]
        if dataset in ("sharegpt", "custom") and "path" not in section.cells:
            self.doc.mistake(_beside(section, ("workloads",)), f"has no path, and {dataset} is read from a file.")
        for key in ("input_len", "output_len") if dataset == "random" else ():
            if key not in section.cells:
                self.doc.mistake(_beside(section, ("workloads",)), f"has no {key}, which random prompts need.")
            elif key in cells and cells[key] < 1 and not micro:
                self.doc.mistake(section.paths[key], "must be at least 1 (0: in a micro benchmark alone).")
        if micro and cells.get("prefix_len"):
            self.doc.mistake(section.paths["prefix_len"], "in a micro test, what is there before is the load's depth.")


def _beside(section: Section, default: Path) -> Path:
    """The table in which a key is missing."""
    return next((path[:-1] for path in section.paths.values()), default)
