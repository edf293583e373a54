"""What is left of a study: first on this machine, then on the rigs elsewhere, one after the other."""

import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

import msgspec

from dyno.conduct import study_plan
from dyno.conduct.study import Conductor, Headers
from dyno.errors import RigError, UsageError
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, Study
from dyno.http import check_certificates
from dyno.load.progress import Stop
from dyno.remote.elsewhere import Elsewhere
from dyno.remote.engine import FarMachine
from dyno.saying import Say
from dyno.search.tune import Watch
from dyno.signals import interrupt, lent
from dyno.store.study import StudyFolder
from dyno.study.order import sessions
from dyno.trial.watcher import StudyWatcher


class StudyChoices(msgspec.Struct, frozen=True):
    """What a command chooses about the conduct of a study."""

    limit: int | None = None  # trials, at most
    only: tuple[str, ...] = ()  # patterns of their names
    # also on a machine that the study was not written for, or that has changed
    any_rig: bool = False
    any_rig_flag: str = ""  # words about how that is asked for; '': this command can't
    no_prepare: bool = False
    keep_raw: bool = False

    def words(self) -> list[str]:
        """Return them as flags of `dyno run` on another machine."""
        switches = {
            "--any-rig": self.any_rig,
            "--no-prepare": self.no_prepare,
            "--keep-raw": self.keep_raw,
        }
        words = [flag for flag, given in switches.items() if given]
        words += ["--limit", str(self.limit)] if self.limit else []
        return words + [word for pattern in self.only for word in ("--only", pattern)]


# of trials to run, and how many were done before
Views = Callable[[Sequence[PlannedTrial], int], StudyWatcher]


def conduct_part(
    text: str,
    folder: StudyFolder,
    headers: Headers,
    whole: Study,
    planned: Sequence[PlannedTrial],
    watch: Watch,
) -> None:
    """Store a study as far as it is known, and run these trials of it: `dyno tune` plans while it measures."""
    folder.write(*study_plan.public(whole, text))
    study = msgspec.structs.replace(
        whole, trials=list(planned), on_failure="carry_on", interleave="engines", stop=None
    )
    Conductor(study, folder, headers, watch.watcher, watch.stop, wants=watch.wants).conduct(
        planned
    )


class StudyRun(msgspec.Struct, frozen=True):
    """A study with its folder, and the trials of it that are wanted."""

    study: Study
    text: str
    folder: StudyFolder
    wanted: list[PlannedTrial]
    headers: Headers
    views: Views
    say: Say
    choices: StudyChoices = StudyChoices()

    def here(self, machine: Rig) -> tuple[bool, bool]:
        """Run what is left on this machine. Return whether it was interrupted, and whether anything was left at all."""
        done = self.folder.done()
        mine = [p for p in self.wanted if not self.study.is_elsewhere(p)]
        left = self._left(mine, done)
        refuse(
            study_plan.problems(study_plan.plans(self.study, left, machine, dry=False)),
            "nothing was started",
        )
        check_keys((p for p in self.wanted if p.place.id not in done), self.headers)
        check_certificates(p.trial.target for p in left)
        if (
            left
            and not self.choices.any_rig
            and (changes := study_plan.moved(self.folder, mine, machine))
        ):
            raise UsageError(
                f"{self.folder.path} was started on another machine, or this machine has changed: {' '.join(changes)} "
                f"The trials would not be comparable. {self.choices.any_rig_flag}--runs DIR starts elsewhere."
            )
        self.folder.write(*study_plan.public(self.study, self.text))
        before = sum(p.place.id in done for p in self.wanted)
        self._say_where(before)
        stop = Stop()
        try:
            with closing(self.views(left, before)) as view:
                Conductor(
                    self.study, self.folder, self.headers, view, stop, self.choices.keep_raw
                ).conduct(left)
        except KeyboardInterrupt:
            stop.requested = True
        return stop.requested, before < len(self.wanted)

    def elsewhere(self) -> list[str | None]:
        """Run the trials of rigs that are elsewhere. Return what went wrong; None: Ctrl-C."""
        problems: list[str | None] = []
        for name in dict.fromkeys(
            p.place.rig for p in self.wanted if self.study.is_elsewhere(p)
        ):
            assert name is not None
            stop = Stop()
            try:
                with lent((signal.SIGTERM, signal.SIGHUP), interrupt):
                    self._on_rig(name, stop)
            except RigError as e:
                problems.append(str(e))
            except KeyboardInterrupt:
                stop.requested = True
            if stop.requested:
                return [*problems, None]
        return problems

    def _on_rig(self, name: str, stop: Stop) -> None:
        mine = [p for p in self.wanted if p.place.rig == name]
        far = Elsewhere(
            self.study,
            self.text,
            self.folder,
            name,
            lambda text: self.say(f"[{name}] {text}"),
            study_plan.public,
        )
        if self.study.rigs[name].client == "rig":
            far.conduct(mine, self.choices.words())
        elif {p.place.id for p in mine} - self.folder.done():
            far.from_here(
                mine, lambda machine: self._from_here(mine, stop, {name: machine})
            )

    def _from_here(
        self, mine: Sequence[PlannedTrial], stop: Stop, far: dict[str, FarMachine]
    ) -> None:
        """Run trials whose engines are on another machine, with the load from here."""

        def with_address(planned: PlannedTrial) -> dict[str, str]:
            """Keys of the engine, and of the address by which its machine publishes it."""
            published = far[planned.place.rig or ""].published
            return {**self.headers(planned), **(published.headers if published else {})}

        done = self.folder.done()
        before = sum(p.place.id in done for p in self.wanted)
        left = self._left(mine, done)
        with closing(self.views(left, before)) as view:
            Conductor(
                self.study,
                self.folder,
                with_address,
                view,
                stop,
                self.choices.keep_raw,
                far,
            ).conduct(left)

    def _left(self, trials: Sequence[PlannedTrial], done: set[str]) -> list[PlannedTrial]:
        ids = {p.place.id for p in trials} - done
        return [p for session in sessions(self.study, ids) for p in session.trials][
            : self.choices.limit
        ]

    def _say_where(self, before: int) -> None:
        if before == len(self.wanted):
            return
        path = self.folder.path
        if before:
            self.say(f"{before} of {len(self.wanted)} trials are done; resuming in {path}.")
        elif path.name != self.study.name and not self.choices.limit:
            self.say(
                f"{path.with_name(self.study.name)} keeps its results; the new ones go to {path}."
            )


def refuse(problems: Sequence[str], so: str) -> None:
    if problems:
        raise UsageError("\n".join([f"The study has problems; {so}:", *problems]))


def check_keys(planned: Iterable[PlannedTrial], headers: Headers) -> None:
    for each in planned:
        headers(each)  # a missing key is an error before anything starts
