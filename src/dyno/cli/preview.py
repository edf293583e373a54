"""What `dyno run --dry-run` shows: the trials in their order, the commands, and how long it may take."""

import sys
from pathlib import Path

from dyno.cli.progress import clock
from dyno.conduct import study_plan
from dyno.conduct.offline import counts
from dyno.errors import UsageError
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, Study
from dyno.facts.trial import TrialSpec, micro_name
from dyno.study.estimate import OWN_START_S, START_S, TOKEN_S, left_s, trial_s
from dyno.study.order import TrialGroup, sessions


def preview(study: Study, wanted: list[PlannedTrial], found: Rig, runs: Path) -> int:
    groups = sessions(study, {p.place.id for p in wanted})
    print(f"# {study.name}: {_count(len(wanted), 'trial')}, {_count(len(groups), 'session')} with an engine")
    for i, (name, trials) in enumerate(groups, 1):
        print(f"\n{i}. {name}")
        for p in trials:
            repeat = f" r{p.place.repeat}" if p.place.repeats > 1 else ""
            where = f"[{p.place.rig}] " if p.place.rig else ""
            print(f"   {where}{p.place.label}{repeat}: {_asked(p)}, ~{clock(trial_s(p.trial))}")
    print("\n# The commands")
    start_s: dict[str, float] = {}
    plans = study_plan.plans(study, wanted, found, dry=True)
    for setting in plans:
        mine, plan = setting.trials, setting.engine
        own = OWN_START_S if plan and plan.program.embedded else START_S if plan else 0.0
        start_s |= {p.place.id: own for p in mine}
        print(f"\n# {mine[0].place.label.partition(',')[0]}: {len(mine)} trials")
        if plan:
            print("\n".join(plan.lines()))
            for note in dict.fromkeys(n for p in mine for n in plan.notes(p.trial.load.max_concurrency)):
                print(f"# {note}")
        elif not setting.refused:
            print(f"# runs already at {', '.join(mine[0].trial.target.urls)}")
    print(f"\n# {_estimate(study, groups, start_s, runs)}")
    wrong = study_plan.problems(plans)
    for problem in wrong:
        print(f"dyno: {problem}", file=sys.stderr)
    return UsageError.exit_code if wrong else 0


def _estimate(study: Study, groups: list[TrialGroup], start_s: dict[str, float], runs: Path) -> str:
    """Of what is left. Trials that are done tell how far off the assumption is."""
    folder = study_plan.begun(runs, study)
    done = {p.place.id: run.result() for p in study.trials if folder and (run := folder.run(p.place)).whole}
    took_s = {id: result.duration_s for id, result in done.items()}
    total = left_s(study, [trials for _, trials in groups], start_s, took_s)
    if folder and done:
        return f"{len(done)} trials are done in {folder.path}. About {clock(total)} for the rest, at their pace."
    starts = sum(start_s[trials[0].place.id] for _, trials in groups)
    return (
        f"About {clock(total)}, assuming {TOKEN_S * 1000:g} ms a token and {clock(starts)} for all starts; once trials "
        "are done, they correct it."
    )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _offline(t: TrialSpec, lengths: str) -> str:
    assert t.offline is not None
    if t.offline.kind == "micro":
        return micro_name(t.workload.input_len, t.workload.output_len or 0, t.offline.depth or 0)
    return (
        f"a batch of {t.workload.num_prompts} × {lengths}"
        if t.offline.kind == "latency"
        else f"{t.workload.num_prompts} × {lengths}"
    )


def _asked(planned: PlannedTrial) -> str:
    """The load in a few words."""
    t = planned.trial
    w, load = t.workload, t.load
    lengths = f"{w.input_len}/{w.output_len}" if w.dataset == "random" else w.dataset
    if t.offline:
        return f"{t.offline.kind}, {_offline(t, lengths)}, {_count(counts(t)[0], 'iteration')}"
    how = load.words(", {:g}/s", ", {} at once", ", all at once", ", ramp")
    return f"{w.num_prompts} × {lengths}{how}, {w.num_warmups} to warm up"
