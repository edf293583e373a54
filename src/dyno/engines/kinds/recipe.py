"""How dyno installs an engine or a tool: as a package, and what must work afterwards; or as an image."""

import msgspec

from dyno.facts.engine import before, is_of

VARIANTS = ("cpu", "cuda", "rocm", "vulkan")
TORCH_CPU = (
    "CPU builds of torch have a package index of their own: add it to pip's configuration."
)
# Built for another torch: importing them fails, and transformers imports them where they are installed.
OF_OTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A package, and the environment around it."""

    package: str | None  # `--from` replaces it; None: only by `--from`
    module: str  # its name in Python: its package is asked for its version
    check: tuple[str, ...]  # a command of the environment that must succeed
    # Installed before it, so that the package finds this build. A bare name: in the version that the package requires.
    first: tuple[str, ...] = ()
    version: str | None = None  # the default; None: the newest
    remove: tuple[str, ...] = ()  # uninstalled afterwards
    binary: str | None = None  # the engine's own, under the environment's packages
    # llama.cpp's, under the environment's packages: `programs` are built from them
    sources: str | None = None
    programs: tuple[str, ...] = ()
    env: dict[str, str] = {}
    options: tuple[str, ...] = ()  # of `pip install`
    note: str = ""  # shown when it is installed
    hint: str = ""  # shown where the installation fails, or where there is no package
    # of its environment; with CUDA's libraries for torch it is most of all these
    about_bytes: int | None = None


class KnownImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image, as in versions.toml: of one version, or all from `since` to before `until`."""

    engine: str
    variant: str
    image: str
    document: str
    version: str = ""
    since: str = ""
    until: str = ""
    latest: str = ""
    gone: str = ""
    architectures: list[str] = []  # gfx942, …; empty: any

    def fits(self, architecture: str | None) -> bool:
        return (
            not architecture or not self.architectures or architecture in self.architectures
        )

    def covers(self, version: str) -> bool:
        if self.version:
            return is_of(self.version, version)
        return not before(version, self.since) and (
            not self.until or before(version, self.until)
        )
