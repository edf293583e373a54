"""Dumps of versions and devices: what PyTorch's collect_env, a package list or an engine's log say of a machine."""

import re

from dyno.facts.imported import Setting

_LINES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^\W{0,8}vLLM Version\s*:\s*v?(\S+)", re.I), "engine_version"),
    (re.compile(r"\bvLLM API server version\s+v?(\S+)"), "engine_version"),
    (re.compile(r"Initializing a V\d LLM engine \(v([\w.+-]+)\)"), "engine_version"),
    (re.compile(r"^\W{0,8}\[?(?:pip3|conda)?\]?\s*vllm==(\S+)"), "engine_version"),
    (re.compile(r"^\W{0,8}SGLang(?: Version)?\s*:\s*v?(\d\S+)", re.I), "engine_version"),
    (re.compile(r"^\W{0,8}PyTorch version\s*:\s*(\S+)", re.I), "torch"),
    (re.compile(r"^\W{0,8}\[(?:pip3|conda)\]\s*torch==(\S+)"), "torch"),
    (re.compile(r"^\W{0,8}\[(?:pip3|conda)\]\s*transformers==(\S+)"), "transformers"),
    (re.compile(r"^\W{0,8}ROCM? Version\s*:\s*(\d\S+)", re.I), "rocm"),
    (re.compile(r"^\W{0,8}HIP runtime version\s*:\s*(\d\S+)"), "hip"),
    (re.compile(r"^\W{0,8}CUDA runtime version\s*:\s*(\d\S+)"), "cuda"),
    (re.compile(r"^\W{0,8}Nvidia driver version\s*:\s*(\d\S+)", re.I), "driver"),
    (re.compile(r"^\W{0,8}GPU models and configuration\s*:\s*(\w.{3,80})$"), "accelerator"),
)
_DEVICE = re.compile(r"^\W{0,8}GPU (\d{1,2})\s*:\s*([A-Z][\w .+-]{3,60}?)\s*(?:\(|$)")
_CPU = re.compile(r"^\W{0,8}Model name\s*:\s*(\S.{3,80})$")
_HINTS = ("ersion", "==", "GPU", "Model name", "LLM engine", "SGLang")
_MOST = 1_000  # dumps of a document
_BEGINS = re.compile(r"PyTorch version\s*:|Collecting environment information")


class Environments:
    """Gathers the dumps of a document. A new one begins with its first line said again."""

    def __init__(self) -> None:
        self.found: list[dict[str, Setting]] = []
        self._devices: set[str] = set()

    def take(self, number: int, text: str) -> bool:
        if not any(hint in text for hint in _HINTS):
            return False
        for pattern, name in _LINES:
            if told := pattern.search(text):
                self._put(name, told[1].rstrip(",;)'\""), number, fresh=bool(_BEGINS.search(text)))
                return True
        if told := _DEVICE.search(text):
            self._put("accelerator", told[2].strip(), number)
            self._devices.add(told[1])
            self.found[-1]["accelerators"] = Setting(len(self._devices), number, "environment")
            return True
        if (told := _CPU.search(text)) and self.found:
            self._put("cpu", told[1].strip(), number)
            return True
        return False

    def _put(self, name: str, value: str, number: int, fresh: bool = False) -> None:
        if not self.found or (fresh and self.found[-1] and len(self.found) < _MOST):
            self.found.append({})
            self._devices = set()
        self.found[-1].setdefault(name, Setting(value[:200], number, "environment"))
