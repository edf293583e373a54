"""What an engine's last words mean: the failures people meet, and what to do about each."""

import re
from collections.abc import Iterable

# (what it looks like in a log, what to do). The first that is found is told: causes stand before consequences.
_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"gated repo|access to model .{1,200} is restricted|401 client error|you need to be authenticated|"
        r"cannot access gated",
        "The model is gated: ask for access on its page, and set HF_TOKEN in the environment of dyno.",
    ),
    (
        r"no available memory for the cache blocks|can be stored in (?:the )?kv cache|kv cache is needed, which is",
        "Weights and KV cache don't fit into its share of the memory: raise memory_fraction, lower max_model_len, take "
        "a smaller quantization or more devices.",
    ),
    (
        r"out of memory|outofmemoryerror|memoryerror|failed to allocate|unable to allocate|cudamalloc failed|"
        r"less than desired (?:gpu|device) memory utilization|std::bad_alloc|not enough (?:gpu )?memory",
        "It needs more memory than there is: lower max_model_len, max_num_seqs or memory_fraction, take a smaller "
        "quantization or more devices, and see that nothing else holds the memory.",
    ),
    (
        r"address already in use|couldn't bind|could not bind|failed to bind|errno 98|port \d+ is (?:already )?in use",
        "Another program took the port meanwhile: run it again.",
    ),
    (
        r"unknown quantization|quantization method .{0,80}(?:not supported|does not match|is not)|"
        r"not supported for the current gpu|minimum capability|unsupported quantization|invalid quantization|"
        r"unknown (?:file )?type|unsupported kv cache type|does not support .{0,40}quant",
        "This engine or device can't run that quantization: choose another, or a build that has it.",
    ),
    (
        r"no cuda gpus are available|failed to infer device type|no (?:hip|rocm|cuda)[- ]capable device|"
        r"driver version is insufficient|invalid device ordinal|not compiled with cuda|libcuda\.so|no gpu was found|"
        r"invalid device: |hipErrorNoDevice|/dev/kfd",
        "It finds no device that it can use: look at `dyno doctor`, the driver, and devices; a container needs the "
        "device options.",
    ),
    (
        r"first request for one token.{0,60}\b40[13]\b",
        "It wants the key that it was given: set OPENAI_API_KEY to it.",
    ),
    (
        r"no space left on device",
        "The disk is full: free some, or move HF_HOME and the engine's cache.",
    ),
    (
        r"insufficient shared memory|bus error",
        "Shared memory is too small: a container needs --ipc=host or a larger --shm-size.",
    ),
    (
        r"unrecognized arguments|unexpected argument|invalid choice|error: argument|error: invalid argument|"
        r"unknown argument|no such option|error while handling argument",
        "It doesn't know one of these arguments: see the setting's args, and the flags that its version has.",
    ),
    (
        r"unknown (?:model )?architecture|not supported for now|unsupported architecture|model type .{1,60} but",
        "This version doesn't know the model's architecture: take a newer one.",
    ),
    (
        r"corrupted or incomplete|not within the file bounds|incomplete metadata|failed to read (?:header|magic)|"
        r"invalid magic|safetensorerror",
        "The model's files are damaged or cut off: fetch them again.",
    ),
    (
        r"is not a local folder|repository not found|repo id must|does not appear to have|no such file|"
        r"failed to open gguf|localentrynotfound|can't load the configuration|"
        r"couldn't connect to|not a valid model identifier|filenotfounderror|invalid repository id",
        "The model isn't there: check its path or name; where the hub can't be reached, give a folder.",
    ),
    (
        r"no module named|cannot import name|undefined symbol|libtorch|image not found",
        "Its installation is broken: make it anew with `dyno engines install`.",
    ),
    (
        r"cannot execute|exec format error|permission denied|no such command",
        "The program can't be run here: check binary or python, and its rights.",
    ),
)
_COMPILED = tuple((re.compile(pattern, re.I), advice) for pattern, advice in _KNOWN)


def advice(lines: Iterable[str]) -> str | None:
    text = "\n".join(lines)
    return next((advice for pattern, advice in _COMPILED if pattern.search(text)), None)
