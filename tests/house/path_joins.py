"""Where dyno joins a name to a path without `OutsideName`, and why that is safe. `test_outside.py` holds it."""

# Of each module: who makes the names that it joins, and where it does so.
OWN: dict[str, tuple[str, set[str]]] = {
    "api/searching.py": (
        "ProbeFacts.run has a pattern",
        {"folder / best.run", "self.path / probe.run"},
    ),
    "api/studies.py": (
        "names of the user's own study",
        {"shipped / f'{name}.toml'"},
    ),
    "cli/report.py": (
        "beside the file that the user names",
        {
            "output.with_name(f'{output.stem}-preview.png')",
            "output.with_name(f'{output.stem}-{chart.name}{output.suffix}')",
        },
    ),
    "cli/runs.py": (
        "a word of the user's command",
        {"imports / f'{word}.json'", "imports / word"},
    ),
    "cli/serve.py": (
        "a flag of the user's, a process id",
        {
            "Path(options.result_dir or '.') / (name if options.append_result else name.with_stem(name.stem + ending))",
            "folder / f'.dyno-{os.getpid()}'",
            "name.with_stem(name.stem + ending)",
        },
    ),
    "conduct/calibration.py": (
        "numbers",
        {"folder / f'fake-{i}.log'"},
    ),
    "remote/elsewhere.py": (
        "names in the source; an entry's id, made here",
        {
            "run.path / name",
            "self.folder / f'{entry.id}.partial'",
            "self.folder / f'{name}.json'",
        },
    ),
    "search/proposer.py": (
        "beside the journal, in a folder of dyno's",
        {"path.with_name(f'{path.name}.lock')"},
    ),
    "trial/lifecycle.py": (
        "numbers",
        {"folder / (f'engine-{index + 1}.log' if index else 'engine.log')"},
    ),
    "quality/lm_eval.py": (
        "numbers; names of dyno's own tasks",
        {
            "folder / f'dyno_{task}{name}.jsonl'",
            "folder / f'dyno_{task}{name}.yaml'",
            "run.path / f'lm-eval-{concurrency}.cache'",
            "run.path / f'lm-eval-{concurrency}.json'",
        },
    ),
    "conduct/provide.py": (
        "the time and a process id",
        {
            "environment.home() / 'logs' / f\"image-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log\""
        },
    ),
    "conduct/study.py": (
        "names that were listed in a folder; the name of the user's own study",
        {"run.path / log.name", "run.path / name", "path.with_name(self.study.name)"},
    ),
    "conduct/study_plan.py": (
        "the name of the user's study",
        {"runs / f'{study.name}-{number}'", "runs / study.name"},
    ),
    "search/tune.py": (
        "ProbeFacts.run has a pattern",
        {"run.path / probe.run"},
    ),
    "search/tune_plan.py": (
        "the name of the user's study",
        {"runs / f\"{plan.study.name}-tune{(f'-{n}' if n > 1 else '')}\""},
    ),
    "trial/fleet.py": (
        "a hash of settings",
        {"plan.caches.folder / f'.{name}.lock'"},
    ),
    "facts/schedule.py": (
        "a key of the user's study",
        {"folder / Path(name).expanduser()"},
    ),
    "models/archive.py": (
        "files of an entry on the shelf",
        {"root / name"},
    ),
    "models/check.py": (
        "names that were listed in the folder; numbers of parts",
        {"path / name", "path.with_name(f'{split[1]}-{n:05d}-of-{split[2]}.gguf')"},
    ),
    "models/gguf.py": (
        "a recipe's name, which has letters, digits and . _ - only",
        {
            "env.folder / 'bin' / name",
            "part / f\"{recipe.name.replace('.gguf', '')}.gguf\"",
        },
    ),
    "models/hub.py": (
        "files of an entry on the shelf, whose names were checked when it was put there",
        {"entry.folder / name", "entry.folder / next(iter(entry.files))", "root / name"},
    ),
    "models/library.py": (
        "a recipe's name; files of an entry on the shelf",
        {
            "entry.folder / name",
            "folder.with_name(f'.{recipe.name}.part')",
            "model_folder(recipe.name) / file",
            "models_folder() / f'.{recipe.name}.lock'",
            "self.folder / name",
        },
    ),
    "models/tool.py": (
        "names in the source",
        {"folder / f'make-{name}.log'"},
    ),
    "models/programs/__main__.py": (
        "names in the source",
        {"Path(__file__).with_name(name.replace('-', '') + '.py')"},
    ),
    "outside.py": (
        "the one way",
        {"folder.joinpath(*self.parts)"},
    ),
    "report/page/__init__.py": (
        "a version, a process id, names in the source",
        {
            "cache_folder / f\"vega-embed-{version('vl-convert-python')}.js\"",
            "path.with_name(f'{path.name}.{os.getpid()}')",
            "resources.files('dyno.report.page').joinpath(name)",
        },
    ),
    "results/tools/lm_eval.py": (
        "a part of the name that the file beside it has",
        {"path.with_name(f'results_{match[2]}.json')"},
    ),
    "remote/dstack.py": (
        "a run's name, made here",
        {"folder / f'{name}.key.pub'", "folder / f'{name}.{end}'"},
    ),
    "remote/wheel.py": (
        "packages that are installed here",
        {"Path(folder, name)", "folder / f'{name}-{tag}.whl'"},
    ),
    "store/imports.py": (
        "a slug; a checksum",
        {"folder / f'{name}-{digest[:8]}.json'", "folder / f'{name}.json'"},
    ),
    "store/pack.py": (
        "names that were listed in a folder",
        {"folder / name", "path.parent / until[1:]", "runs / name"},
    ),
    "store/run.py": (
        "numbers, a slug; beside a path that is known",
        {
            "first.with_stem(f'{first.stem}-{k}')",
            "path.with_name(path.name + '.partial')",
            "runs / f'{stamp}-{slug(name)}-{token_hex(2)}'",
            "self.path / f'answers-{concurrency}.jsonl'",
        },
    ),
    "store/shelf.py": (
        "names in the source or listed in a folder; a slug and Place.id, which has a pattern",
        {
            "path / f'{kind}.json'",
            "Path(folder) / name",
            "folder.trials_path / trial_name(place)",
            "path / name",
            "path.with_name(f'.deleting-{path.name}')",
        },
    ),
    "store/sql.py": (
        "names in the source",
        {"folder / f'{name}.json'", "folder / name"},
    ),
    "store/study.py": (
        "a slug and Place.id, which has a pattern; names that were listed in a folder",
        {
            "self.engines_path / f'{number:03d}-{slug(name)}'",
            "self.trials_path / name",
            "self.trials_path / self._names.get(place.id, trial_name(place))",
            "self.trials_path / trial_name(place)",
        },
    ),
    "study/file.py": (
        "a key of the user's study",
        {"self.trials.folder / spec.include_path"},
    ),
    "study/trials.py": (
        "a key of the user's study",
        {"self.folder / value"},
    ),
    "workload/clients.py": (
        "beside the user's file",
        {"trace.with_name(trace.name.replace('-trace.csv', '-dataset.json'))"},
    ),
}
# Modules and folders in which no name comes from outside.
INSIDE = {
    "search/find.py": "ProbeFacts.run has a pattern; kinds of engines are a Literal",
    "engines/": "recipes and settings of this installation; the kernel's and pip's names",
    "measure/": "numbers",
    "search/judge.py": "numbers",
    "search/search.py": "numbers",
    "probe/": "names in /proc and /sys; process ids",
    "remote/agent.py": "runs on the rig, with what home sends: home is trusted there",
}
