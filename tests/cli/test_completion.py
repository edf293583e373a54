"""`dyno completion`, in real shells."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from dyno.cli.main import main

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

DONE = {  # what is typed → what it may become, and what it may not
    "dyno ": ("bench compare completion", "serve --engine"),
    "dyno bench ": ("serve throughput latency micro", "bench"),
    "dyno bench serve --ba": ("--backend --base-url", "--engine"),
    "dyno bench serve --backend ": ("openai openai-chat llama.cpp", "--backend"),
    "dyno bench micro --engine ": ("vllm llamacpp", "serve"),
    "dyno runs show my": ("my-study my-run", "other"),
    "dyno run st": ("study.toml", "my-run"),
    "dyno engines start ": ("fake vllm", "install"),
}
BASH = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dyno; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture
def script(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shell: str,
) -> Path:
    """A shell's script, in a folder with a study's file and some runs."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here (Debian: apt-get install {shell})")
    monkeypatch.chdir(tmp_path)
    Path("study.toml").touch()
    for name in ("my-study", "my-run", "other"):
        Path("runs", name).mkdir(parents=True)
    assert main(["completion", shell]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_commands_flags_values_runs_and_files(
    script: Path, shell: str
) -> None:
    for line, (wanted, unwanted) in DONE.items():
        if shell == "bash":
            words = ["bash", "--norc", "-c", BASH, "bash", str(script), *line.split(" ")]
        else:
            words = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        offered = {line.partition("\t")[0] for line in done.stdout.splitlines()}
        assert set(wanted.split()) <= offered and not set(unwanted.split()) & offered, (
            line,
            done.stdout,
            done.stderr,
        )
        assert not done.stderr


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_value_after_an_equals_sign_is_completed(script: Path, shell: str) -> None:
    if shell == "bash":  # splits at =
        words = [
            "bash",
            "--norc",
            "-c",
            BASH,
            "bash",
            str(script),
            *["dyno", "bench", "serve", "--backend", "=", "tg"],
        ]
    else:
        words = [
            "fish",
            "--no-config",
            "-c",
            f"source {script}; complete -C 'dyno bench serve --backend=tg'",
        ]
    out = subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert out.split()[0] in ("tgi", "--backend=tgi")


@pytest.mark.parametrize("shell", ["zsh"])
def test_zsh_completes_what_is_typed_at_its_prompt(script: Path) -> None:
    """Each line is typed, then Tab, then a mark; the line as zsh has completed it is run, and echoes its words."""
    typed = {"dyno ru": "dyno run", "dyno bench thr": "dyno bench throughput ",
             "dyno bench serve --dataset-n": "dyno bench serve --dataset-name=",
             "dyno bench serve --backend tg": "dyno bench serve --backend tgi ",
             "dyno bench serve --backend=tg": "dyno bench serve --backend=tgi ",
             "dyno runs show ot": "dyno runs show other ", "dyno run stu": "dyno run study.toml "}  # fmt: skip
    master, slave = os.openpty()
    process = subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    try:
        setup = f'PS1=; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; eval "$(<{script})"'
        os.write(
            master,
            f"{setup}; dyno() {{ print -r \"[dyno ${{(j: :)@}}|\" }}; print READ''Y\n".encode(),
        )
        read_until(master, "READY")
        for line, whole in typed.items():
            os.write(master, f"{line}\tX\n".encode())
            assert f"[{whole.rstrip(' ')}{' ' * whole.endswith(' ')}X|" in read_until(
                master, "X|"
            ), line
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(file: int, mark: str, timeout_s: float = 60) -> str:
    text, end = "", time.monotonic() + timeout_s
    while mark not in text:
        assert time.monotonic() < end, text
        text += os.read(file, 65536).decode(errors="replace")
    return text
