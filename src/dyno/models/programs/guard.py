"""Keeps a model's own Python code and pickled objects from running while a tool reads it. Loaded by path, without dyno.

llama.cpp's converter asks transformers to trust the code of some models; a model's folder may be anybody's.
"""

import os
import sys
from typing import Any


def refuse_code() -> None:
    """Make transformers refuse to import code from a model's folder, and torch to load anything but weights."""
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        from transformers import dynamic_module_utils
    except ImportError:
        return

    def refuse(*_: Any, **__: Any) -> None:
        sys.exit(
            "dyno: this model comes with Python code of its own (auto_map), which dyno doesn't run. Use a model that "
            "transformers knows, or convert it yourself after reading its code."
        )

    dynamic_module_utils.get_class_in_module = refuse
