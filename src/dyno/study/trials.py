"""From the cells of one point of the grid to a trial: defaults filled in, parts checked against each other."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from dyno.errors import UsageError
from dyno.facts import rules, schedule
from dyno.facts.client import ClientSpec
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.metric import GOODPUT
from dyno.facts.offline import OfflineSpec
from dyno.facts.quality import QualitySpec
from dyno.facts.recipe import ModelRecipe
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.http import Url, check_plain
from dyno.option import problems
from dyno.study.cells import CELLS, CLIENT, OFFLINE, SERVING, TRANSPORT, converted
from dyno.study.document import Mistakes, Path, near
from dyno.study.grid import GridCell, Section
from dyno.workload.common import MOST_PROMPTS
from dyno.workload.dataset import Dataset, DatasetTraits
from dyno.workload.datasets import DATASETS, DEFAULT, DEFAULT_OF_CLASSES
from dyno.workload.draw import Draw
from dyno.workload.spec import TrafficClass, WorkloadSpec

# prepared for a closed loop that runs for a time; then they are sent again
_DURATION_PROMPTS = 1000
# Counted for each engine in its own words elsewhere; in a study the same for all, so that they can be compared.
_SAMPLING = {"temperature": 0.0}
_PERCENTILES = [50.0, 90.0, 95.0, 99.0]
_WARMUPS = 8  # where no concurrency says better
# Keys whose default in a study is another one than that of `dyno bench serve`, in words.
OWN_DEFAULTS = {
    "num_prompts": "none: give it, `requests_per_stream` or `duration_s`",
    "num_warmups": f"the concurrency; with a rate {_WARMUPS}",
    "percentiles": f"`{_PERCENTILES}`",
    "sampling": f"temperature {_SAMPLING['temperature']:g}",
}
_COUNTS = ("num_prompts", "num_sessions", "requests_per_stream", "duration_s")
# breaks no rule
_UNKNOWN = Dataset(name="", about="", make="", traits=DatasetTraits(times=True))
_TURNS = "5"  # of a conversation, where nothing says how many
_PATHS = (
    "model", "draft_model", "path", "tokenizer", "python", "binary", "cacert", "cert", "cert_key",
)  # fmt: skip


class Known(NamedTuple):
    """Engines and backends that dyno has, handed in: this room imports none of them."""

    backends: Mapping[str, str]  # engine kind → its backend
    starts: Mapping[str, bool]  # engine kind → whether dyno starts it
    paths: Mapping[str, str]  # backend → its route
    whole_paths: Mapping[str, str]  # … for answers in one piece
    fields: Mapping[str, frozenset[str] | None]  # backend → the fields it takes; None: any
    prompts_needed: Callable[[LoadSpec, WorkloadSpec], int | None]
    # the key of a model that is wrong, and why
    recipe_problem: Callable[[ModelRecipe], tuple[str, str] | None]
    quality_problem: Callable[[QualitySpec], tuple[str, str] | None]  # likewise
    quality_workload: Callable[[QualitySpec], WorkloadSpec]
    # for the loads of all
    with_slots: Callable[[Sequence[TrialSpec], QualitySpec | None], list[TrialSpec]]


class Trials:
    def __init__(self, document: Mistakes, known: Known, folder: FilePath) -> None:
        self.doc, self.known, self.folder = document, known, folder
        self.models: dict[str, ModelRecipe | None] = {}  # None: it is wrong

    def trial(self, sections: dict[str, Section], cell: GridCell) -> TrialSpec | None:
        values = {
            part: self._converted(section, cell.sections[part])
            for part, section in sections.items()
        }
        if weights := self._weights(values, sections):
            values["engine"]["weights"] = weights
        streamed = values["trial"].get("stream", True)
        paths = self.known.paths if streamed else self.known.whole_paths
        engine, target = self._engine(values["engine"], sections["engine"], paths)
        cells = values["workload"]
        cells.setdefault("dataset", DEFAULT_OF_CLASSES if cells.get("classes") else DEFAULT)
        dataset = DATASETS.get(cells["dataset"], _UNKNOWN)
        paced = _is_paced(cells, dataset) and not values["load"].keys() & set(rules.LEVELS)
        load, offline = self._load(values["load"], sections["load"], paced)
        self._check_rules(
            values, sections, dataset, recorded=paced or "arrivals" in values["load"]
        )
        workload = self._workload(values, sections, load, offline)
        t = values["trial"]
        self._check_figures(t, sections["trial"])
        if engine is None or target is None or workload is None:
            return None  # after all of it was checked
        return TrialSpec(
            target=target,
            workload=workload,
            load=load,
            sampling=self._sampling(t, sections["trial"], cell, target.backend),
            ignore_eos=t.pop("ignore_eos", workload.traits.endless),
            percentiles=t.pop("percentiles", _PERCENTILES),
            reset_cache=t.pop("cache", "empty") == "empty",
            kind=offline.kind if offline else "serve",
            offline=offline,
            engine=engine,
            client=ClientSpec(**{key: t.pop(key) for key in CLIENT if key in t}),
            **t,
        )

    def _converted(self, section: Section, cells: dict[str, Any]) -> dict[str, Any]:
        """Return the cells with values of their types, without those that are mistakes."""
        resolved = {key: self._relative(key, value) for key, value in cells.items()}
        values = {}
        for key, value in resolved.items():
            own = converted(self.doc, section.paths[key], CELLS[section.part][key], value)
            if own is not None:
                values[key] = own
        return values

    def _sampling(
        self, t: dict[str, Any], section: Section, cell: GridCell, backend: str
    ) -> dict[str, Any]:
        """Take the sampling parameters out of a trial's settings, without those that the backend doesn't take."""
        sampling: dict[str, Any] = t.pop("sampling", _SAMPLING)
        fields = self.known.fields[backend]
        if fields is None:
            return sampling
        unknown = sorted({*sampling, *t.get("extra_body", {})} - fields)
        if unknown and "sampling" in cell.sections["trial"]:
            where = (
                section.paths.get("sampling")
                or section.paths.get("extra_body")
                or ("trial",)
            )
            self.doc.mistake(
                where, f"the backend {backend} doesn't take {', '.join(unknown)}."
            )
        return {k: v for k, v in sampling.items() if k in fields}

    def _check_figures(self, t: dict[str, Any], section: Section) -> None:
        for name in t.get("goodput_ms", {}).keys() - set(GOODPUT):
            self.doc.unknown_key((*section.paths["goodput_ms"], name), list(GOODPUT))
        for mistake in rules.mistakes(
            rules.TRIAL, rules.GivenSettings(t, _UNKNOWN), "keys"
        ):
            inside = [mistake.inside] if mistake.inside else []
            self.doc.mistake(
                (*section.paths[mistake.rule.setting], *inside), mistake.text(_key_words)
            )

    def _relative(self, key: str, value: Any) -> Any:
        """Resolve a path that begins with a dot from the study's folder."""
        if key == "classes" and isinstance(value, dict):
            classes = dict(value)
            for name, part in value.items():
                if isinstance(part, dict):
                    classes[name] = {k: self._relative(k, v) for k, v in part.items()}
            return classes
        if key in _PATHS and isinstance(value, str) and value.startswith(("./", "../")):
            return str((self.folder / value).resolve())
        return value

    def _engine(
        self, cells: dict[str, Any], section: Section, paths: Mapping[str, str]
    ) -> tuple[EngineSpec | None, TargetSpec | None]:
        kind = self._kind(cells, section)
        if kind is None:
            return None, None
        urls = cells.pop("base_url", [])
        if isinstance(urls, str):
            urls = [urls]
        cells.pop("api_key_env", None)
        backend = cells.pop("backend", self.known.backends[kind])
        if backend not in paths:
            self.doc.unknown(section.paths["backend"], backend, list(paths), "backend")
            return None, None
        if not self._check_urls(urls, kind, section):
            return None, None
        endpoint = cells.pop("endpoint", paths[backend])
        try:
            check_plain(endpoint, "it")
        except UsageError as e:
            self.doc.mistake(section.paths["endpoint"], str(e))
        given = rules.GivenSettings({**cells, "endpoint": endpoint}, _UNKNOWN)
        for mistake in rules.mistakes(rules.TARGET, given, "keys"):
            self.doc.mistake(section.paths[mistake.rule.setting], mistake.text(_key_words))
        transport = {key: cells.pop(key) for key in TRANSPORT if key in cells}
        for key in ("insecure", "cacert", "cert", "cert_key"):
            if key in transport and not urls:
                self.doc.mistake(
                    section.paths[key], "is for a running server only: give its base_url."
                )
        base, *more = urls or [""]
        target = TargetSpec(
            base, backend, endpoint, cells.get("model"), more_urls=more, **transport
        )
        return EngineSpec(**cells), target

    def _kind(self, cells: dict[str, Any], section: Section) -> str | None:
        """Return an engine's kind; None: it is missing or unknown, and that is reported."""
        kind: str | None = cells.get("kind")
        if kind is None:
            kinds = ", ".join(self.known.backends)
            self.doc.missing(
                section.table,
                f"kind is missing. Give one of {kinds}.",
                ["kind"],
                _tables(section),
            )
            return None
        if kind not in self.known.backends:
            self.doc.unknown(
                section.paths["kind"], kind, list(self.known.backends), "engine kind"
            )
            return None
        return kind

    def _check_urls(self, urls: list[str], kind: str, section: Section) -> bool:
        """Return whether an engine of this kind has a URL exactly if it is a running server."""
        attached = not self.known.starts[kind]
        if attached and not urls:
            text = f"base_url is missing: kind = {kind!r} is a running server."
            self.doc.missing(section.table, text, ["base_url"], _tables(section))
            return False
        if urls and not attached:
            text = f"dyno starts {kind} itself. For a running server write kind = 'openai'."
            self.doc.mistake(section.paths["base_url"], text)
            return False
        for url in urls:
            try:
                Url(url)
            except UsageError as e:
                self.doc.mistake(section.paths["base_url"], str(e))
        return True

    def _weights(
        self, values: dict[str, dict[str, Any]], sections: dict[str, Section]
    ) -> dict[str, ModelRecipe]:
        """Return the recipes of this study's models that a trial names. A slip of the pen in a name is a mistake."""
        keys = [("trial", "tokenizer")]
        if self.known.starts.get(values["engine"].get("kind", ""), True):
            keys += [("engine", "model"), ("engine", "draft_model")]
        out = {}
        for part, key in keys:
            named = str(values[part].get(key) or "")
            if recipe := self.models.get(named):
                out[named] = recipe
            elif (
                named
                and named not in self.models
                and "/" not in named
                and near(named, list(self.models))
            ):
                self.doc.unknown(
                    sections[part].paths[key], named, list(self.models), "model"
                )
        return out

    def _load(
        self, cells: dict[str, Any], section: Section, paced: bool
    ) -> tuple[LoadSpec, OfflineSpec | None]:
        kind = cells.get("kind", "serve")
        self._check_load_keys(kind, cells, section)
        if kind != "serve":
            return LoadSpec(), OfflineSpec(
                kind, **{k: v for k, v in cells.items() if k in OFFLINE}
            )
        serving = {k: v for k, v in cells.items() if k in SERVING}
        if paced:
            serving.setdefault("arrivals", "recorded")
        if "arrivals" not in serving and not serving.keys() & set(rules.LEVELS):
            text = "the load is missing. Give max_concurrency, request_rate_rps (inf: all at once), ramp or a schedule."
            self.doc.missing(section.table, text, rules.LEVELS, _tables(section))
        self._schedules(serving, section)
        for key in ("request_rate_rps", "burstiness"):
            if serving.get(key) == math.inf:
                serving[key] = None
        return LoadSpec(**serving), None

    def _check_load_keys(self, kind: str, cells: dict[str, Any], section: Section) -> None:
        if kind == "serve":
            foreign, which = (
                OFFLINE,
                "an offline load (kind = 'throughput', 'latency', 'micro')",
            )
        else:
            foreign, which = SERVING, "kind = 'serve'"
        for key in cells:
            if key in foreign:
                self.doc.mistake(
                    section.paths[key], f"is for {which}, but this load is {kind!r}."
                )

    def _check_rules(
        self,
        values: dict[str, dict[str, Any]],
        sections: dict[str, Section],
        dataset: Dataset,
        recorded: bool,
    ) -> None:
        """Collect the rules that load and workload break, each at its key; of a key that is missing, at the table."""
        cells, work, kind = (
            values["load"],
            sections["workload"],
            values["load"].get("kind", "serve"),
        )
        # How many requests: the load's number goes before the workload's, and with workloads that have no sessions.
        aside = {"num_sessions", "num_warmups", *(SERVING if kind != "serve" else ())}
        load = {k: v for k, v in cells.items() if k not in aside}
        paced = "requests_per_stream" in load  # then the workload's number is not used
        own = [k for k in work.cells if not (paced and k == "num_prompts")]
        given = {k: values["workload"].get(k) for k in own} | load
        each = [*rules.LOAD, *(rules.WORKLOAD if dataset is not _UNKNOWN else ())]
        settings = rules.GivenSettings(given, dataset, recorded, micro=kind == "micro")
        for mistake in rules.mistakes(each, settings, "keys"):
            setting, text = mistake.rule.setting, mistake.text(_key_words)
            section = (
                work
                if setting in CELLS["workload"] and setting not in load
                else sections["load"]
            )
            where = section.paths.get(setting)
            if where is None:
                where, text = section.table, f"{setting} {text}"
            if mistake.rule.mends:
                self.doc.missing(where, text, mistake.rule.mends, _tables(section))
            else:
                self.doc.mistake(where, text)

    def _schedules(self, serving: dict[str, Any], section: Section) -> None:
        """Put the values of a file in place of its name."""
        for key in serving.keys() & set(rules.SCHEDULES):
            try:
                serving[key] = schedule.located(serving[key], self.folder)
            except UsageError as e:
                self.doc.mistake(section.paths[key], str(e))
                del serving[key]

    def _workload(
        self,
        values: dict[str, dict[str, Any]],
        sections: dict[str, Section],
        load: LoadSpec,
        offline: OfflineSpec | None,
    ) -> WorkloadSpec | None:
        cells, how, section = values["workload"], values["load"], sections["workload"]
        if not self._check_dataset(cells, section, offline):
            return None
        if offline and offline.kind == "latency" and "num_prompts" in how:
            where = sections["load"].paths["num_prompts"]
            self.doc.mistake(
                where, "is not for a latency load: its batch_size says how many."
            )
        count, sessions = self._count(cells, how, load, offline)
        if count is None:
            text = (
                "num_prompts is missing. Give it here or in the load, or give the load requests_per_stream or "
                "duration_s."
            )
            self.doc.missing(
                section.table, text, _COUNTS, _tables(section) | _tables(sections["load"])
            )
            return None
        if count > MOST_PROMPTS:
            self.doc.mistake(
                section.table,
                f"would have {count:,} requests. The most is {MOST_PROMPTS:,}.",
            )
            return None
        warmups = how.get("num_warmups", cells.get("num_warmups"))
        if warmups is None:
            warmups = (
                0 if offline else min(load.max_concurrency or _WARMUPS, count or _WARMUPS)
            )
        return WorkloadSpec(
            **{
                **cells,
                "num_prompts": count,
                "num_sessions": sessions,
                "num_warmups": warmups,
            }
        )

    def _count(
        self,
        cells: dict[str, Any],
        how: dict[str, Any],
        load: LoadSpec,
        offline: OfflineSpec | None,
    ) -> tuple[int | None, int | None]:
        """Return how many requests and sessions there are. `cells`: of the workload, `how`: of the load."""
        sessions = how.get("num_sessions", cells.get("num_sessions"))
        count = _requested(how, cells, load, offline)
        if count is not None:
            return count, sessions
        count = self.known.prompts_needed(load, WorkloadSpec(**cells))
        if count is None:
            return _implied(cells, load, offline, sessions), sessions
        if count and cells["dataset"] == DEFAULT_OF_CLASSES and "num_prompts" not in cells:
            sessions = sessions or count  # the classes' rates are those of sessions
        return count, sessions

    def _check_dataset(
        self, cells: dict[str, Any], section: Section, offline: OfflineSpec | None
    ) -> bool:
        """Return whether there is such a data set, and those of its classes."""
        dataset = cells["dataset"]
        if dataset not in DATASETS:
            self.doc.unknown(section.paths["dataset"], dataset, list(DATASETS), "dataset")
            return False
        if not self._check_classes(cells.get("classes", {}), section):
            return False
        if offline and DATASETS[dataset].traits.sessions:
            self.doc.mistake(
                section.paths["dataset"],
                f"{dataset} needs a server: its load must be kind = 'serve'.",
            )
        return True

    def _check_classes(self, classes: dict[str, TrafficClass], section: Section) -> bool:
        known = list(TrafficClass.__struct_fields__)
        for name, part in classes.items():
            where = (*section.paths["classes"], name)
            if part.dataset not in DATASETS:
                self.doc.unknown(
                    (*where, "dataset"), part.dataset, list(DATASETS), "dataset"
                )
                return False
            for key in _class_keys(section, name) - set(known):
                self.doc.unknown_key((*where, key), known)
            for why in problems(part):
                self.doc.mistake(where, f"{why}.")
            for limit in part.goodput_ms.keys() - set(GOODPUT):
                self.doc.unknown_key((*where, "goodput_ms", limit), list(GOODPUT))
        return True


def _class_keys(section: Section, name: str) -> set[str]:
    """Return the keys of a class as written, also where the study has a list of such tables."""
    given = section.cells["classes"]
    tables = given if isinstance(given, list) else [given]
    return {key for table in tables for key in table.get(name, {})}


def _is_paced(cells: dict[str, Any], dataset: Dataset) -> bool:
    """Return whether the workload says when requests are sent."""
    classes: dict[str, TrafficClass] = cells.get("classes", {})
    return dataset.traits.paced or any(part.request_rate_rps for part in classes.values())


def _requested(
    how: dict[str, Any],
    cells: dict[str, Any],
    load: LoadSpec,
    offline: OfflineSpec | None,
) -> int | None:
    """Return the number of requests that a load asks for, or its workload; 0: all of a file."""
    if offline and offline.kind == "latency":
        return offline.batch_size or 8  # as vLLM's; what a workload says is for other loads
    if "num_prompts" in how:
        asked: int = how["num_prompts"]
        return max(asked, 0)
    each: float = how.get("requests_per_stream", 0)
    if each:
        return max(1, round(each * (load.max_concurrency or 1)))
    of_workload: int | None = cells.get("num_prompts")
    if of_workload is None:
        return None
    return max(of_workload, 0)


def _implied(
    cells: dict[str, Any], load: LoadSpec, offline: OfflineSpec | None, sessions: int | None
) -> int | None:
    """Return the number of requests where neither load nor workload gives one."""
    if sessions:  # about as many, for estimates
        return round(sessions * Draw.parse(cells.get("turns") or _TURNS).mean)
    if DATASETS[cells["dataset"]].traits.trace:
        return 0  # all of it
    if load.duration_s:
        return max(_DURATION_PROMPTS, 20 * (load.max_concurrency or 1))
    if offline:
        return 1 if offline.kind == "micro" else 1000  # as vLLM's procedure does
    return None


def _key_words(field: str) -> str:
    """Return a setting's name in a study; of the only value that a key can have, with that."""
    return 'arrivals = "recorded"' if field == "arrivals" else field


def _tables(section: Section) -> set[Path]:
    """Return the tables that its keys come from."""
    return {path[:-1] for path in section.paths.values()} | {section.table}
