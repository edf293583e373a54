"""What is a secret: by its name, by its looks, by its value in whatever form."""

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dyno import secrets
from dyno.api.headers import check_headers
from dyno.conduct import study_plan
from dyno.engines.launch import public_spec, spec_secrets
from dyno.errors import TargetError, UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.record import Record
from dyno.facts.study import Study
from dyno.facts.target import TargetSpec
from dyno.http import Url
from dyno.secrets import HIDDEN
from dyno.store.run import make_folder, pretty, write
from dyno.trial.prepare import hidden, public
from dyno.workload.spec import WorkloadSpec

KEY = 'sk_9"/\\&Ü-very-secret'


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    secrets.forget()
    yield
    secrets.forget()


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "HF_TOKEN_2", "VLLM_API_KEY", "OPENAI_API_KEYS", "OPENAIAPIKEY", "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "GPG_PASSPHRASE", "SSHPASS", "MYSQL_PWD", "pwd", "pw", "password",
        "dbPassword", "secret-key", "private-key", "access-key", "accessKey", "client-secret", "clientSecret",
        "accessToken", "bearer", "Cookie", "Set-Cookie", "Authorization", "X-Api-Key", "auth", "basic_auth",
        "credentials", "jwt", "pass", "GH_PAT", "hf-overrides.token",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name_as_variable_flag_and_field(name: str) -> None:
    assert secrets.is_secret(name)
    assert secrets.shown(name, "x") == HIDDEN
    assert secrets.public({"a": [{name: 5}]}) == {"a": [{name: HIDDEN}]}
    assert secrets.without((), [f"--{name}", "x", "--port", "1"]) == [
        f"--{name}",
        HIDDEN,
        "--port",
        "1",
    ]
    assert secrets.without((), [f"--{name}=x", f"{name}=x"]) == [
        f"--{name}={HIDDEN}",
        f"{name}={HIDDEN}",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "MAX_TOKENS_PER_RANK", "TOKENIZERS_PARALLELISM", "GIT_AUTHOR_NAME", "PWD", "OLDPWD", "PATH", "max-tokens",
        "max_token", "tokenizer", "tokenizer-mode", "tokens", "token_ids", "stop_token_ids", "eos_token_id",
        "bos_token", "time_per_output_token", "total_token_throughput", "key-value-cache-dtype",
        "num_key_value_heads", "kv_cache", "enable-prefix-caching", "pass@1", "forward_pass", "bypass", "passes",
        "keys", "MONKEY", "keyword", "author", "patch", "api_key_env", "ssl-key-file", "HF_TOKEN_PATH",
        "hidden_size",
    ],
)  # fmt: skip
def test_an_innocent_name_is_shown(name: str) -> None:
    assert not secrets.is_secret(name)
    assert secrets.public({name: "x", "b": [{name: 5}]}) == {name: "x", "b": [{name: 5}]}
    assert secrets.without((), [f"--{name}", "x", f"{name}=x"]) == [
        f"--{name}",
        "x",
        f"{name}=x",
    ]


def test_the_setting_hf_subset_is_not_a_token_of_the_hub() -> None:
    known = "Known: hf_name, hf_subset, hf_split."
    assert secrets.without_looks(known) == known
    assert secrets.without_in_toml('hf_subset = "main"') == 'hf_subset = "main"'
    assert "hf_subsets" not in secrets.without_looks("hf_subsetsAbc123")


def test_headers_that_may_change_an_answer_are_known_by_their_names() -> None:
    aside = [
        "Authorization",
        "X-Api-Key",
        "Cookie",
        "User-Agent",
        "Accept-Encoding",
        "X-Request-Id",
        "traceparent",
    ]
    assert secrets.routing([*aside, "X-Variant", "x-variant", "X-Tenant"]) == [
        "x-tenant",
        "x-variant",
    ]


def test_secrets_lie_in_lists_objects_numbers_and_json_within_a_text() -> None:
    body = {
        "a": {"password": "p"},
        "b": [{"password": 12345678}, ["--api-key", "k1", "k2", "--x"]],
        "auth": {"user": "me", "list": ["x", None, True]},
        "c": '{"client_secret": "s"}',
        "url": "http://me:pw@host/x",
        "n": 5,
    }
    assert secrets.public(body) == {
        "a": {"password": HIDDEN},
        "b": [{"password": HIDDEN}, ["--api-key", HIDDEN, HIDDEN, "--x"]],
        "auth": {"user": HIDDEN, "list": [HIDDEN, None, True]},
        "c": f'{{"client_secret": "{HIDDEN}"}}',
        "url": f"http://{HIDDEN}@host/x",
        "n": 5,
    }
    assert {*secrets.within(body)} == {"p", "12345678", "k1", "k2", "me", "x", "s", "me:pw"}
    assert secrets.public(secrets.public(body)) == secrets.public(body)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--env=DB_PASSWORD=hunter22"], ["hunter22"]),
        (["-e", "HF_TOKEN=abcdefgh=="], ["abcdefgh=="]),
        (["-eHF_TOKEN=abcdefgh"], ["abcdefgh"]),
        (["--secret-key", "abcdefgh", "positional"], ["abcdefgh"]),
        (
            ["--api-key", "abcdefgh", "ijklmnop", "--port", "8000000"],
            ["abcdefgh", "ijklmnop"],
        ),
        (["-H", "Authorization: Bearer abcdefgh"], ["Bearer abcdefgh", "abcdefgh"]),
        (['--config={"password": "abcdefgh"}'], ["abcdefgh"]),
        (["--max-tokens", "1000000", "--tokenizer", "org/model"], []),
    ],
)
def test_secrets_among_arguments(words: list[str], found: list[str]) -> None:
    assert secrets.values({}, words) == found
    assert not [s for s in found if s in " ".join(secrets.without((), words))]


def test_basic_credentials_are_secret_as_they_are_sent_and_as_they_are_meant() -> None:
    reported = base64.b64encode(b"somebody:hunter22").decode()
    found = secrets.of_headers(
        {
            "Authorization": f"Basic {reported}",
            "Accept": "text/event-stream",
            "X-Model": "org/model",
        }
    )
    assert found == [f"Basic {reported}", reported, "somebody:hunter22", "hunter22"]


def letters(form: str) -> Callable[[str], str]:
    return lambda key: "".join(form.format(ord(c)) for c in key)


@pytest.mark.parametrize(
    "form",
    [
        str, repr, json.dumps, lambda key: json.dumps(json.dumps(key)), letters("\\u{:04x}"), letters("\\u{:04X}"),
        lambda key: json.dumps(letters("\\u{:04x}")(key)), letters("\\x{:02x}"), letters("&#{};"), letters("&#x{:X};"),
        lambda key: urllib.parse.quote(key, safe=""), urllib.parse.quote, html.escape,
        lambda key: base64.b64encode(key.encode()).decode(),
        lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    ],
)  # fmt: skip
def test_a_known_secret_is_found_in_whatever_form_it_is_written(
    form: Callable[[str], str],
) -> None:
    secrets.learn([KEY])
    text = form(KEY)
    cleaned = secrets.clean(f"before {text} behind")
    assert re.fullmatch(r"before \W*\[redacted\](?:\w{0,4}\W*) behind", cleaned), cleaned


class Reported(msgspec.Struct):
    name: str
    counts: dict[str, int]
    number: int


def test_values_and_keys_are_cleaned_and_names_of_fields_and_numbers_are_not() -> None:
    secrets.learn(["password-123", "number", "counts1", "12345678"])
    reported = Reported("a password-123", {"password-123": 1}, 12345678)
    assert msgspec.json.decode(pretty(reported)) == {
        "name": f"a {HIDDEN}",
        "counts": {HIDDEN: 1},
        "number": 12345678,
    }
    secrets.learn(["redacted"])
    assert secrets.clean(secrets.clean("password-123")) == HIDDEN


def test_a_choice_of_dynos_own_stays_whatever_a_secret_is() -> None:
    """A header's value may be an ordinary word, and a run must be readable after that."""
    secrets.learn(["llama.cpp", "tokenizer", "sharegpt-shaped", "localhost", "throughput"])
    target = TargetSpec("http://localhost:1", "llama.cpp", "/completion", model="tokenizer")
    assert secrets.clean(target) == msgspec.structs.replace(target, model=HIDDEN)
    assert secrets.clean(WorkloadSpec("sharegpt-shaped")).dataset == "sharegpt-shaped"
    assert secrets.clean(OfflineSpec("throughput")).kind == "throughput"
    assert (
        secrets.clean(Record(1, 2, 3, 4, 5, 6, tokens_by="tokenizer")).tokens_by
        == "tokenizer"
    )


def test_an_error_holds_no_secret_wherever_it_is_reported() -> None:
    secrets.learn(["password-123"])
    assert str(TargetError("it says \\u0070assword-123")) == f"it says {HIDDEN}"
    assert (
        str(UsageError("ftp://me:pw@host is not a URL"))
        == f"ftp://{HIDDEN}@host is not a URL"
    )
    with pytest.raises(UsageError, match=r"^The URL contains a user name or password"):
        Url("ftp://me:pw@host")


@pytest.mark.parametrize("name", ["Authorization: Bearer abc", "X Key", "", "Ä"])
def test_a_header_whose_name_is_half_a_key_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(UsageError, match=r"^A header's name must be one word") as caught:
        check_headers({name: "="})
    assert "abc" not in str(caught.value)


def test_a_certificate_is_found_too_and_half_a_character_is_not_a_secret() -> None:
    pem = "-----BEGIN KEY-----\n" + "abcdefgh\n" * 500
    secrets.learn([pem, "\ud83d-seven-letters", "\udc80not-utf8"])
    assert (
        secrets.clean(f"x {pem} {json.dumps(pem)} \udc80not-utf8")
        == f'x {HIDDEN} "{HIDDEN}" {HIDDEN}'
    )


def test_a_long_text_full_of_escapes_is_cleaned_soon() -> None:
    import time

    secrets.learn(["a" * 40, "sk-very-secret-1234", "\\" * 30 + "x", "b\\\\\\\\c-seven"])
    began = time.process_time()
    for text in (
        "\\" * 60_000,
        "%61" * 20_000,
        "a" * 39 + "\\u0061" * 10_000,
        "&#x61;" * 10_000,
        "sk-very%" * 10_000,
    ):
        secrets.clean(text)
    for text in (
        "-eyJabcdefgh" * 6_000,
        "a." * 40_000,
        'x = "' + "a" * 20_000 + '"',
        "--a-" * 20_000,
        "://" * 20_000,
    ):
        secrets.without_in_command(text)
        secrets.without_in_toml(text)
        secrets.public({"x": [text, text]})
    assert time.process_time() - began < 20


# ---- settings and study files ----


def test_the_commands_around_an_engine_hold_secrets_too() -> None:
    before = [
        "login --password hunter22x",
        "PGPASSWORD=sesame-open psql",
        "A_TOKEN='q w' x --pass z9 --port 8000 | cat",
    ]
    spec = EngineSpec("vllm", before=before, after=["it's 'cut"])
    assert spec_secrets(spec) == ["sesame-open", "hunter22x"]
    assert public_spec(spec).before == [
        f"login --password {HIDDEN}",
        f"PGPASSWORD={HIDDEN} psql",
        f"A_TOKEN={HIDDEN} x --pass {HIDDEN} --port 8000 | cat",
    ]


def planned(text: str, folder: Path) -> tuple[Study, str]:
    path = folder / "s.toml"
    path.write_text(text)
    return study_plan.public(*study_plan.read(path))


STUDY = """
# db_password = "old-one-1"
[engines.e]
kind = "openai"
base_url = "http://127.0.0.1:9"
model = "m"
api_key_env = "THEIR_KEY"
[workloads.w]
input_len = 16
output_len = 4
num_prompts = 3
[loads.c]
max_concurrency = [1, 2]
[trial]
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('extra_body = { a = { password = "hunter22" } }', ["hunter22"]),
        ("extra_body = { a = [{ password = 'pw' , x = 1 }] }", ["pw"]),
        ("extra_body = { pin = 1, api-key = 99_887_766 }", ["99887766", "99_887_766"]),
        (
            'extra_body = { "access key" = 1, token = """\nmulti\nline-12\n""" }',
            ["multi", "line-12"],
        ),
        ('metadata = { client_secret = "abc" }', ["abc"]),
    ],
)
def test_a_secret_in_a_body_reaches_neither_file_of_the_study(
    body: str, words: list[str], tmp_path: Path
) -> None:
    study, text = planned(STUDY + body, tmp_path)
    assert len(study.trials) == 2
    # the rest is word for word
    assert "THEIR_KEY" in text and "max_concurrency = [1, 2]" in text
    both = pretty(study).decode() + text
    assert not [
        word for word in ["old-one-1", *words] if re.search(rf"\b{word}\b", both)
    ], both
    assert not [
        word
        for p in study.trials
        for word in words
        if re.search(rf"\b{word}\b", p.place.label)
    ]


@pytest.mark.parametrize(
    "body",
    ['extra_body = { passwords = ["hunter22", "x"] }', "extra_body = { auth = { a = 1 } }"],
)
def test_a_file_whose_secrets_cannot_be_taken_out_is_not_kept(
    body: str, tmp_path: Path
) -> None:
    assert planned(STUDY + body, tmp_path)[1].startswith("# The file is not stored")


def test_a_trial_that_varies_a_secret_shows_none_and_a_renewed_key_is_the_same_trial(
    tmp_path: Path,
) -> None:
    body = 'extra_body = [{ a = [{ password = "%s" }] }, { b = 2 }]'
    ids = []
    for word in ("hunter22", "hunter23"):
        study, _ = planned(STUDY + body % word, tmp_path)
        assert "hunter" not in str([p.place for p in study.trials])
        ids.append([p.place.id for p in study.trials])
    assert ids[0] == ids[1] and len({*ids[0]}) == 4


def test_what_a_trial_sends_is_known_as_secret(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY + 'extra_body = { a = [{ password = "hunter22" }] }')
    trial = study_plan.read(path)[0].trials[0].trial
    assert {*hidden(trial, {"X-Any": "Bearer sesame-open"})} == {
        "hunter22",
        "sesame-open",
        "Bearer sesame-open",
    }
    assert public(trial).extra_body == {"a": [{"password": HIDDEN}]}


# ---- for the owner alone ----


def test_folders_and_files_are_the_owners_alone_and_what_is_there_keeps_its_mode(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    make_folder(tmp_path / "runs/a/b")
    make_folder(tmp_path)
    with pytest.raises(FileExistsError):
        make_folder(tmp_path, new=True)
    write(tmp_path / "runs/a/b/trial.json", b"{}")
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path, *tmp_path.rglob("*"))}
    assert modes == {
        tmp_path.name: 0o755,
        "runs": 0o700,
        "a": 0o700,
        "b": 0o700,
        "trial.json": 0o600,
    }
