"""`dyno engines`: list, install, start and remove engines, and the images of those in containers."""

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno import secrets
from dyno.cli import flags, preparing, settings
from dyno.engines.kinds import KINDS, TOOLS, kind_of
from dyno.engines.kinds.recipe import VARIANTS
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, image_problem
from dyno.numbers import human_bytes, setting
from dyno.report.table import terminal, text_table
from dyno.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dyno.cli.progress import ProgressLine
    from dyno.engines.image import Image
    from dyno.engines.kinds.base import EngineKind
    from dyno.trial.engine_plan import EnginePlan
    from dyno.trial.fleet import Fleet

_STREAMS = 16  # of the load that is shown
_LOAD = "--num-prompts 200"
# seconds on a processor
_SHORT_LOAD = "--num-prompts 64 --random-input-len 64 --random-output-len 32"
_LIST = "List the engines that dyno can start: that come with it, that it installed, and those on PATH."


def add(p: argparse.ArgumentParser) -> None:
    verbs = p.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_list(verbs)
    _add_install(verbs)
    _add_start(verbs)
    _add_remove(verbs)
    _add_images(verbs)


def _add_start(verbs: Any) -> None:
    words = "start an engine in the foreground; Ctrl-C stops it"
    p = verbs.add_parser(
        "start",
        help=words,
        description=f"{words.capitalize().replace('ctrl-c', 'Ctrl-C')}.",
    )
    start = p.add_subparsers(title="engines", required=True, metavar="KIND")
    fake = start.add_parser(
        "fake", help=KINDS["fake"].about, description="Start an engine with known timings."
    )
    settings.add_port(fake, "port to listen on", default=8000)
    fake.add_argument(
        "--first-ms", type=float, default=50.0, metavar="MS", help="time to the first token"
    )
    fake.add_argument(
        "--gap-ms", type=float, default=10.0, metavar="MS", help="time between tokens"
    )
    fake.add_argument(
        "--slots",
        type=int,
        default=0,
        metavar="N",
        help="requests at once before it slows down (0: any)",
    )
    fake.add_argument(
        "--noise",
        type=float,
        default=0.0,
        metavar="SD",
        help="deviation of the times' logarithm",
    )
    fake.add_argument("--model", default="fake", help="model name to answer with")
    fake.add_argument(
        "--max-model-len",
        type=int,
        default=131_072,
        metavar="N",
        help="longest context, in tokens",
    )
    fake.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND[@N][>M]",
        help="break every Nth request this way, and only with more than M at once; `--fault help` lists the kinds; "
        "repeatable",
    )
    fake.set_defaults(command=start_fake)
    for kind in KINDS.values():
        if kind.starts and kind.computes:
            title = kind.about.partition(":")[0]
            p = start.add_parser(
                kind.name, help=kind.about, description=f"Start {title}. Ctrl-C stops it."
            )
            p.usage, p.epilog, p.passes_on = (
                f"{p.prog} [MODEL] [flags]",
                settings.PASSED_ON,
                "always",
            )
            settings.add_model(p, kind.model_help)
            p.add_argument(
                "--served-model-name",
                metavar="NAME",
                help="model name in the API (default: the engine's)",
            )
            p.add_argument(
                "--host",
                "--hostname",
                help="address to listen on: 127.0.0.1 or 0.0.0.0 (default: 127.0.0.1)",
            )
            settings.add_port(
                p, "port to listen on; further replicas use the next ones", default=8000
            )
            p.add_argument("--dry-run", action="store_true", help=settings.DRY_RUN)
            settings.add_engine(p.add_argument_group("engine settings"))
            p.set_defaults(command=start_engine, engine=kind.name)


def start_fake(options: argparse.Namespace) -> int:
    from dyno.engines.fake import FAULTS, FakeSpec, parse_faults
    from dyno.engines.fake.server import serve

    if "help" in options.fault:
        for kind, what in FAULTS.items():
            print(f"{kind:<14} {what}")
        return 0
    faults, busy_faults = parse_faults(options.fault)
    spec = FakeSpec(
        first_ms=options.first_ms,
        gap_ms=options.gap_ms,
        slots=options.slots,
        noise=options.noise,
        model=options.model,
        max_model_len=options.max_model_len,
        faults=faults,
        busy_faults=busy_faults,
    )
    url = f"http://127.0.0.1:{options.port}"
    serve(
        spec,
        options.port,
        ready=lambda: _report_ready("The fake engine", [url], options.model),
    )
    return 0


def start_engine(options: argparse.Namespace) -> int:
    from dyno.probe import rig
    from dyno.trial.engine_plan import EnginePlan

    if options.model is None:
        for name, value in kind_of(options.engine).start_defaults(options.own_args).items():
            setattr(options, name, getattr(options, name) or value)
    spec = settings.engine(options.engine, options)
    if not options.dry_run:
        preparing.for_engines([spec], options)
    plan = EnginePlan(spec, rig.read_machine(), dry=options.dry_run)
    problems = plan.problems()
    if options.dry_run:
        settings.print_plan(plan.lines())
    if problems:
        raise UsageError(" ".join(problems))
    if options.dry_run:
        return 0
    return _serve(plan, _SHORT_LOAD if options.model is None else _LOAD)


def _serve(plan: "EnginePlan", load: str) -> int:
    """Run an engine until Ctrl-C, or until it ends. Its folder stays where a message points there."""
    from dyno.cli.progress import ProgressLine
    from dyno.trial.fleet import running

    place, progress = Scratch("dyno-engine-"), ProgressLine()
    try:
        with (
            progress,
            running(
                plan, place.path, {}, progress.phase, lambda _: None, progress.below
            ) as fleet,
        ):
            progress.over()
            for line in _lines(fleet):
                print(line, file=sys.stderr)
            _report_ready(
                plan.kind.title, fleet.urls, plan.served_name, fleet.target.slots, load
            )
            while not (death := fleet.death()):
                time.sleep(0.5)
            raise EngineError(death.replace(" under load", ""))
    except EngineError:
        place.keep()
        raise
    except BaseException:
        place.remove()
        raise


def _lines(fleet: "Fleet") -> Iterator[str]:
    """Describe the engine by what it reports of itself."""
    for name, value in msgspec.structs.asdict(fleet.target).items():
        if value is not None and name != "model":
            words = human_bytes(value) if name.endswith("_bytes") else _fact(value)
            yield f"{name.removesuffix('_bytes').replace('_', ' '):<22} {words}"


def _fact(value: Any) -> str:
    """Return one fact, or several that the engine reports under one name."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {setting(each)}" for key, each in value.items())
    return setting(value)


def _report_ready(
    engine: str,
    urls: "Sequence[str]",
    model: str,
    slots: int | None = None,
    load: str = _LOAD,
) -> None:
    """Print where it listens, and a command that measures it."""
    level = min(_STREAMS, slots or _STREAMS) * len(urls)
    command = (
        f"dyno bench serve --base-url {' '.join(urls)} --max-concurrency {level} {load}"
    )
    print(
        f"{engine} listens at {', '.join(urls)}, model {model}. Ctrl-C stops it.",
        file=sys.stderr,
    )
    print(f"To measure it, in another terminal:\n  {command}", file=sys.stderr, flush=True)


def _add_list(verbs: Any) -> None:
    p = verbs.add_parser(
        "list", help="list engines: with dyno, installed, on PATH", description=_LIST
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    p.set_defaults(command=show)


def _either(names: "Sequence[str]") -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _add_install(verbs: Any) -> None:
    installable = [kind.name for kind in KINDS.values() if kind.recipes is not None]
    built = [kind.name for kind in KINDS.values() if kind.is_built]
    p = verbs.add_parser(
        "install",
        help="install an engine into its own environment",
        description="Create a virtual environment for the engine under $DYNO_HOME/engines (default: "
        "~/.local/share/dyno/engines) with pip. pip's own configuration applies: indexes, proxies, find-links. "
        "Installed engines stay.",
    )
    p.add_argument(
        "kind",
        metavar="KIND",
        help=f"{_either(installable)}; or a tool: {_either(TOOLS)}",
    )
    p.add_argument(
        "--version", metavar="V", help="version to install (default: the newest)"
    )
    p.add_argument(
        "--variant",
        choices=VARIANTS,
        help="build to install (default: by this machine's accelerators)",
    )
    p.add_argument(
        "--from",
        dest="source",
        metavar="WHEEL|URL|GIT|IMAGE",
        help="install this instead (default: the engine's package, repository or image)",
    )
    p.add_argument(
        "--by",
        choices=("package", "source", "container"),
        help=f"pip, a build from source ({', '.join(built)}), or a container image "
        "(default: a package where there is one)",
    )
    p.add_argument(
        "--python",
        metavar="P",
        help="path or version of the interpreter (default: the one that runs dyno)",
    )
    flags.add_ignored(p, "--no-uv")  # pip is the only way now
    p.set_defaults(command=install)


def _add_remove(verbs: Any) -> None:
    p = verbs.add_parser(
        "remove",
        help="remove an installed engine",
        description="Remove an installed engine and its environment.",
    )
    p.add_argument("name", metavar="NAME", help="its name in `dyno engines list`")
    p.set_defaults(command=remove)


def show(options: argparse.Namespace) -> int:
    from dyno.engines import environment

    kinds = {kind.name: _facts(kind) for kind in KINDS.values() if kind.starts}
    tools: dict[str, dict[str, Any]] = {
        name: {"installed": environment.installed(name)} for name in TOOLS
    }
    if options.json:
        facts = msgspec.to_builtins(
            {"home": str(environment.home()), "kinds": kinds, "tools": tools}
        )
        print(json.dumps(facts))
        return 0
    for name, has in (*kinds.items(), *tools.items()):
        if name == TOOLS[0]:
            print("\nTools of `dyno models`:")
        lines = list(_places(name, has)) or [
            f"not installed; `dyno engines install {name}`"
        ]
        print(f"{name:<14} {lines[0]}")
        for line in lines[1:]:
            print(f"{'':<14} {line}")
    return 0


def _facts(kind: "EngineKind") -> dict[str, Any]:
    from dyno.engines import environment

    own = kind.own_program()
    return {
        "installed": environment.installed(kind.name),
        "on_path": next(
            (path for name in kind.programs if (path := shutil.which(name))), None
        ),
        "comes_with_dyno": own and own.version,
    }


def _places(name: str, has: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each place that an engine or a tool was found in."""
    own = has.get("comes_with_dyno")
    if own:
        yield "comes with dyno" if own == name else f"comes with dyno, version {own}"
    for env in has["installed"]:
        details = [env.name, f"installed {env.created[:10]}"]
        if env.python_version:
            details.append(f"Python {env.python_version}")
        if env.image:
            details.append(env.source)
        elif env.whole:
            details.append(human_bytes(env.size_bytes))
        else:
            details.append("broken: its Python or program is gone; install it again")
        yield ", ".join(details)
    if has.get("on_path"):
        yield f"on PATH: {has['on_path']}"


def install(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.conduct import provide
    from dyno.engines import install as installing

    image = None
    if not options.source:
        image = provide.image_for_this_card(
            options.kind, options.version, options.variant, options.by
        )
    with ProgressLine() as line:
        env = installing.install(
            options.kind,
            options.version,
            options.variant,
            options.source or image,
            line.say,
            options.python,
            line.below,
            options.by or ("container" if image else None),
        )
    print(f"{env.name}  {env.binary or env.image or env.python}")
    return 0


def remove(options: argparse.Namespace) -> int:
    from dyno.engines import environment

    environment.remove(options.name)
    return 0


# ---- images ----

_BUILD = (
    "Build an image with docker or podman, from a folder or a Git repository with a Dockerfile, and use it with "
    "`--engine-image TAG`. A URL may name a branch and a folder: https://HOST/REPO.git#BRANCH:FOLDER."
)


def _add_images(verbs: Any) -> None:
    words = "images of engines in containers: pull, build, export, import, list, remove"
    p = verbs.add_parser("images", help=words, description=f"{words.capitalize()}.")
    images = p.add_subparsers(title="commands", required=True, metavar="COMMAND")

    p = _verb(images, "pull", pull_image, "pull an image from its registry", "IMAGE")
    p = _verb(
        images, "build", build_image, "build an image from a folder or a Git URL", "TAG"
    )
    p.description = _BUILD
    p.add_argument(
        "context", metavar="FOLDER|URL", help="folder or Git repository with the Dockerfile"
    )
    p.add_argument(
        "--file", metavar="NAME", help="name of the Dockerfile in it (default: the tool's)"
    )
    p.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="build argument; repeatable",
    )
    p = _verb(
        images,
        "export",
        export_image,
        "write an image to a file, for a machine without a registry",
        "IMAGE",
    )
    p.add_argument("file", type=Path, metavar="FILE.tar", help="file to write")
    p = _verb(images, "import", import_image, "load an image from a file, and check it", "")
    p.add_argument(
        "file", type=Path, metavar="FILE.tar", help="file of `dyno engines images export`"
    )
    p = _verb(images, "list", show_images, "list the images on this machine", "")
    p.add_argument("--json", action="store_true", help="print JSON")
    _verb(images, "remove", remove_image, "remove an image from this machine", "IMAGE")


def _verb(
    verbs: Any, name: str, command: Any, words: str, image: str
) -> argparse.ArgumentParser:
    p: argparse.ArgumentParser = verbs.add_parser(
        name, help=words, description=f"{words.capitalize()}."
    )
    if image:
        p.add_argument("image", metavar=image, help="its name, as NAME:TAG")
    p.add_argument(
        "--tool",
        choices=("docker", "podman"),
        help="container tool (default: the one that is installed)",
    )
    p.set_defaults(command=command)
    return p


@contextlib.contextmanager
def _progress() -> "Iterator[tuple[ProgressLine, Path]]":
    """Open a line of progress, and a log that stays only where it is needed: after a failure."""
    from dyno.cli.progress import ProgressLine
    from dyno.engines.log import scrub

    place = Scratch("dyno-images-")
    log = place.path / "images.log"
    log.touch()
    try:
        with ProgressLine() as line:
            yield line, log
    except EngineError:  # which names the log
        scrub(log, secrets.known())
        place.keep()
        raise
    except BaseException:
        place.remove()
        raise
    place.remove()


def pull_image(options: argparse.Namespace) -> int:
    return _provide(options, ContainerSpec(options.image, pull="always"))


def build_image(options: argparse.Namespace) -> int:
    args = flags.pairs(options.build_arg, "--build-arg")
    spec = ContainerSpec(
        options.image, build=options.context, build_file=options.file, build_args=args
    )
    return _provide(options, spec)


def _provide(options: argparse.Namespace, spec: ContainerSpec) -> int:
    from dyno.engines import container, image

    if why := image_problem(spec.image):
        raise UsageError(why)
    secrets.learn(secrets.values(spec.build_args))
    with _progress() as (line, log):
        print(
            image.pull_or_build(
                spec, container.tool(options.tool), line.say, log, line.below
            )
        )
    return 0


def export_image(options: argparse.Namespace) -> int:
    from dyno.engines import container, image

    with _progress() as (line, log):
        tool = container.tool(options.tool)
        print(
            _line(
                image.export(tool, options.image, options.file, line.say, log, line.below)
            )
        )
    return 0


def import_image(options: argparse.Namespace) -> int:
    from dyno.engines import container, image

    with _progress() as (line, log):
        print(
            _line(
                image.import_file(
                    container.tool(options.tool), options.file, line.say, log, line.below
                )
            )
        )
    return 0


def show_images(options: argparse.Namespace) -> int:
    from dyno.engines import container, image

    images = image.installed(container.tool(options.tool))
    if options.json:
        print(json.dumps([i._asdict() for i in images]))
        return 0
    if images:
        print(*terminal(text_table(("",) * 4, map(_cells, images), keep=(0, 3))), sep="\n")
    return 0


def _line(image: "Image") -> str:
    return "  ".join(_cells(image))


def _cells(image: "Image") -> tuple[str, str, str, str]:
    return image.name, image.id[:19], image.created, human_bytes(image.size_bytes)


def remove_image(options: argparse.Namespace) -> int:
    from dyno.engines import container, image

    image.remove(container.tool(options.tool), options.image)
    return 0
