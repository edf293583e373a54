"""`dyno engines images`: pull, build, export, import, list and remove the images of engines in containers."""

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno import secrets
from dyno.cli import flags
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, image_problem
from dyno.numbers import human_bytes
from dyno.report.table import terminal, text_table
from dyno.scratch import Scratch

if TYPE_CHECKING:
    from dyno.cli.progress import ProgressLine
    from dyno.engines.image import Image

_BUILD = (
    "Build an image with docker or podman, from a folder or a Git repository with a Dockerfile, and use it with "
    "`--engine-image TAG`. A URL may name a branch and a folder: https://HOST/REPO.git#BRANCH:FOLDER."
)


def add(verbs: Any) -> None:
    words = "images of engines in containers: pull, build, export, import, list, remove"
    p = verbs.add_parser("images", help=words, description=f"{words.capitalize()}.")
    images = p.add_subparsers(title="commands", required=True, metavar="COMMAND")

    p = _verb(images, "pull", pull, "pull an image from its registry", "IMAGE")
    p = _verb(images, "build", build, "build an image from a folder or a Git URL", "TAG")
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
        export,
        "write an image to a file, for a machine without a registry",
        "IMAGE",
    )
    p.add_argument("file", type=Path, metavar="FILE.tar", help="file to write")
    p = _verb(images, "import", import_file, "load an image from a file, and check it", "")
    p.add_argument(
        "file", type=Path, metavar="FILE.tar", help="file of `dyno engines images export`"
    )
    p = _verb(images, "list", show, "list the images on this machine", "")
    p.add_argument("--json", action="store_true", help="print JSON")
    _verb(images, "remove", remove, "remove an image from this machine", "IMAGE")


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


def pull(options: argparse.Namespace) -> int:
    return _provide(options, ContainerSpec(options.image, pull="always"))


def build(options: argparse.Namespace) -> int:
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


def export(options: argparse.Namespace) -> int:
    from dyno.engines import container, image

    with _progress() as (line, log):
        tool = container.tool(options.tool)
        print(
            _line(
                image.export(tool, options.image, options.file, line.say, log, line.below)
            )
        )
    return 0


def import_file(options: argparse.Namespace) -> int:
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


def show(options: argparse.Namespace) -> int:
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


def remove(options: argparse.Namespace) -> int:
    from dyno.engines import container, image

    image.remove(container.tool(options.tool), options.image)
    return 0
