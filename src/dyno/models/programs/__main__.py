"""Quantize one model: `python -I FOLDER JOB.json`, in the tool's interpreter. Doesn't import dyno.

The tool's output is the log. The last line of stdout that is JSON is the progress; the result goes to the job's file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

PROMPT = "The people of the town work every day, and in the evening they"
NEW_TOKENS = 8


def phase(text: str) -> None:
    print(json.dumps({"phase": text}), flush=True)


def load_tool(name: str) -> Any:
    """Load by path: `import quark` must get the package and not the file beside this one."""
    path = Path(__file__).with_name(name.replace("-", "") + ".py")
    spec = importlib.util.spec_from_file_location("dyno_" + path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def calibration(job: dict[str, Any], tokenizer: Any, longest: int) -> list[Any]:
    """Return the ids of each text, as tensors of one row."""
    import torch

    rows = []
    for line in (
        Path(job["texts"]).read_text(encoding="utf-8").splitlines() if job["texts"] else []
    ):
        text = json.loads(line)
        words = (
            text["text"]
            if "text" in text
            else tokenizer.apply_chat_template(text["messages"], tokenize=False)
        )
        ids = tokenizer(words, truncation=True, max_length=min(job["length"], longest))[
            "input_ids"
        ]
        if ids:
            rows.append(torch.tensor([ids]))
    return rows


def generate(model: Any, ids: Any) -> dict[str, Any]:
    """Continue the prompt greedily. Return the tokens, and the logits of the first step."""
    import torch

    steps = []
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            steps.append(model(ids).logits[:, -1].float().cpu())
            ids = torch.cat([ids, steps[-1].argmax(-1, keepdim=True).to(ids.device)], 1)
    return {"tokens": [int(logits.argmax()) for logits in steps], "logits": steps[0]}


def settle(out: Path, dtype: Any) -> None:
    """Give the tensors that aren't quantized their own type again. Scales stay as they are."""
    import torch
    from safetensors.torch import load_file, save_file

    for path in out.glob("*.safetensors"):
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if tensor.dtype == torch.float32 and not name.endswith(("scale", "zero_point")):
                tensors[name] = tensor.to(dtype)
        save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    config.pop("torch_dtype", None)  # its older name
    config["dtype"] = str(dtype).replace("torch.", "")
    (out / "config.json").write_text(json.dumps(config, indent=2))


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    phase("loading " + job["tool"])
    load_tool("guard").refuse_code()
    tool = load_tool(job["tool"])
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(job["source"])
    dtype = getattr(config.get_text_config(), "dtype", None) or torch.bfloat16
    accelerated = torch.accelerator.is_available()
    # Without instructions for bf16, torch multiplies it a hundred times slower than float32.
    wide = (
        not accelerated
        and dtype != torch.float32
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
    job["dtype"] = torch.float32 if wide else dtype
    job["device"] = str(torch.accelerator.current_accelerator()) if accelerated else "cpu"

    phase("loading the model")
    model = tool.load(job)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["source"])
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"].to(model.device)
    before = generate(model, ids)
    texts = calibration(
        job,
        tokenizer,
        getattr(config.get_text_config(), "max_position_embeddings", 1 << 30),
    )
    phase("quantizing")
    tool.quantize(model, job, texts)
    del model
    if wide:
        settle(Path(job["out"]), dtype)
    phase("generating text")
    model = tool.reload(job)
    for tensor in [*model.parameters(), *model.buffers()] if wide else []:
        if tensor.dtype == dtype:
            tensor.data = tensor.data.float()
    after = generate(model, ids)
    first, second = before.pop("logits"), after.pop("logits")
    result = {
        "tokens": after["tokens"],
        "source_tokens": before["tokens"],
        "finite": bool(second.isfinite().all()),
        "difference": float((first - second).norm() / first.norm()),
        "texts": len(texts),
        "device": job["device"],
    }
    Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
