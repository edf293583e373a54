"""Runs in lm-evaluation-harness's own interpreter, without dyno: python harness.py JOB.json

It asks by lm-eval's own model types for OpenAI-compatible servers, and adds to them: each response is stored as it
comes, so that no request is sent twice; tokens and finish reasons are kept; progress is a JSON line. Headers, which may
hold a key, come by the environment. The result, or the problem in words, is written to the job's `out`.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["TQDM_DISABLE"] = "1"

import requests
from lm_eval import simple_evaluate
from lm_eval.models.api_models import TemplateAPI
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from lm_eval.tasks import TaskManager

TRIES, PAUSE_S = 3, 1.0
BY_LIKELIHOOD = ("loglikelihood", "multiple_choice", "loglikelihood_rolling")
SPOKEN = ("generat", "_gen", "_chat", "_cot", "_llama")  # in the names of generative forms
# of the context: prompts of different lengths with the same count of tokens there were cut
FULL = 0.9
# In the words of an error: a data set couldn't be fetched.
UNREACHED = (
    "ConnectionError",
    "OfflineMode",
    "LocalEntryNotFound",
    "huggingface.co",
    "ConnectError",
    "on the Hub",
)
INVALID = "[invalid]"  # lm-eval's word for an answer from which nothing could be extracted


class Problem(Exception):
    """What the user should know, in words."""


class Server:
    """Sends requests, and stores each response under the request's hash."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.asked = job, 0
        self.seen: Counter[str] = Counter()
        self.session = requests.Session()
        headers = json.loads(os.environ.pop("DYNO_HEADERS", "{}"))
        self.session.headers.update(headers)
        self.secrets = [
            word
            for value in headers.values()
            for word in value.split()
            if len(word) > len("Bearer")
        ]
        self.session.mount(
            "http", requests.adapters.HTTPAdapter(pool_maxsize=job["concurrency"])
        )
        self.session.verify = False if job["insecure"] else job["cacert"] or True
        self.session.cert = (
            (job["cert"], job["cert_key"]) if job["cert_key"] else job["cert"]
        )
        path = Path(job["cache"])
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        self.known = dict(json.loads(line) for line in lines if line.endswith("\n"))
        self.cache = path.open("w", buffering=1)
        self.cache.writelines(json.dumps(pair) + "\n" for pair in self.known.items())

    def post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        for left in reversed(range(TRIES)):
            try:
                response = self.session.post(url, json=body, timeout=self.job["timeout_s"])
                if response.ok:
                    answer: dict[str, Any] = response.json()
                    return answer
                error, gone = f"HTTP {response.status_code}: {response.text[:300]}", False
            except (requests.RequestException, ValueError) as e:
                error, gone = str(e)[:300], isinstance(e, requests.ConnectionError)
            if left:
                time.sleep(PAUSE_S)
        if gone:
            raise Problem(f"The server stopped answering: {error}")
        return {"error": error}

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        # a task may ask the same several times, and wants several answers
        self.seen[digest] += 1
        key = f"{digest}-{self.seen[digest]}"
        answer = self.known.get(key)
        if answer is None:
            answer = self.post(self.job["url"], body)
            if "error" not in answer:
                line = json.dumps([key, answer])
                for secret in self.secrets:  # that the server has sent back
                    line = line.replace(secret, "*" * len(secret))
                self.cache.write(line + "\n")
        self.asked += 1
        return answer


class RemoteTokens:
    """A tokenizer by the server's /tokenize, so that none is downloaded."""

    eos_token = None

    def __init__(self, server: Server) -> None:
        self.server = server
        self.special = self.ask("", special=True)  # that the server puts before a prompt
        # stands before a text without a context
        self.first = (self.special or self.encode("\n"))[0]

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 - one object, as long as the process
    def encode(self, text: str) -> list[int]:
        return self.ask(text, special=False)

    def ask(self, text: str, special: bool) -> list[int]:
        body = {
            "model": self.server.job["model"],
            "prompt": text,
            "add_special_tokens": special,
        }
        answer = self.server.post(self.server.job["tokenize"], body)
        if "tokens" not in answer:
            raise Problem(
                "Log-likelihoods need the server's /tokenize, which it does not have. Use a generative task, or vLLM."
            )
        ids: list[int] = answer["tokens"]
        return ids


class Recorded(TemplateAPI):  # type: ignore[misc]
    """What dyno adds to lm-eval's model types."""

    def __init__(self, server: Server, **settings: Any) -> None:
        super().__init__(
            tokenizer_backend="none", tokenized_requests=False, max_retries=1, **settings
        )
        self.server, self.expected, self.truncated = server, 0, 0
        self.about: dict[str, dict[str, Any]] = {}  # by the hash of the prompt
        self.threads = ThreadPoolExecutor(max_workers=self._concurrent)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        self.expected += len(requests)
        return super().generate_until(requests, disable_tqdm)

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        self.expected += len(requests)
        return super().loglikelihood(requests)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        before, after = super()._encode_pair(context, continuation)
        return [*self.tokenizer.special, *before], after

    @property
    def prefix_token_id(self) -> int:
        first: int = self.tokenizer.first
        return first

    def create_message(self, messages: Any, generate: bool = False) -> Any:
        is_ids = isinstance(messages[0], list) and isinstance(messages[0][0], int)
        return messages if is_ids else super().create_message(messages, generate)

    def batch_loglikelihood_requests(self, chunks: Any) -> Any:
        listed = [list(chunk) for chunk in chunks]
        self.truncated += sum(
            len(a) + len(b) > self.max_length for chunk in listed for _, a, b in chunk
        )
        return super().batch_loglikelihood_requests(listed)

    def model_call(
        self, messages: Any, *, generate: bool = True, gen_kwargs: Any = None, **_: Any
    ) -> Any:
        """Replace lm-eval's own HTTP call, with the same body."""
        # Copied, as lm-eval does: the body takes keys out of it.
        body = self._create_payload(
            self.create_message(messages),
            generate=generate,
            gen_kwargs=copy.deepcopy(gen_kwargs),
            seed=self._seed,
        )
        answer = self.server.ask(body)
        if "error" in answer and not generate:
            raise Problem(
                f"The server refused a request for log-likelihoods: {answer['error']}"
            )
        if generate:
            self.note(messages[0], answer)
        print(json.dumps({"done": self.server.asked, "count": self.expected}), flush=True)
        # An empty answer counts as wrong; the error goes with the item.
        silent = {"index": 0, "text": "", "message": {"content": ""}}
        return {"choices": [silent]} if "error" in answer else answer

    async def amodel_call(
        self,
        session: Any,
        sem: Any,
        messages: Any,
        *,
        generate: bool = True,
        ctxlens: Any = None,
        gen_kwargs: Any = None,
        **_: Any,
    ) -> Any:
        async with sem:
            call = functools.partial(
                self.model_call, messages, generate=generate, gen_kwargs=gen_kwargs
            )
            outputs = await asyncio.get_running_loop().run_in_executor(self.threads, call)
        if generate:
            return [text or "" for text in self.parse_generations(outputs=outputs)]
        return self.parse_logprobs(outputs=outputs, tokens=messages, ctxlens=ctxlens)

    def note(self, prompt: Any, answer: dict[str, Any]) -> None:
        """Keep what a sample of lm-eval lacks, by the hash that it has."""
        choice, usage = (answer.get("choices") or [{}])[0], answer.get("usage") or {}
        self.about[hashlib.sha256(prompt.encode("utf-8")).hexdigest()] = {
            "finish_reason": choice.get("finish_reason"),
            "prompt_tokens": usage.get("prompt_tokens"),
            "output_tokens": usage.get("completion_tokens"),
            "error": answer.get("error"),
            "letters": len(prompt.encode("utf-8")),
        }


class ChatModel(Recorded, LocalChatCompletion):  # type: ignore[misc]
    pass


class CompletionsModel(Recorded, LocalCompletionsAPI):  # type: ignore[misc]
    pass


# ---- tasks ----


def task_manager(job: dict[str, Any]) -> TaskManager:
    """Return the user's tasks; with lm-eval's own, whose thousands of files take seconds, where one is asked for."""
    if job["include_path"]:
        manager = TaskManager(include_path=job["include_path"], include_defaults=False)
        if all(map(manager.match_tasks, ([name] for name in job["tasks"]))):
            return manager
    return TaskManager(include_path=job["include_path"])


def load(job: dict[str, Any], manager: TaskManager) -> dict[str, Any]:
    """Return the tasks by name; a name that doesn't exist, or data that isn't here, is a problem."""
    tasks: dict[str, Any] = {}
    for name in job["tasks"]:
        if not manager.match_tasks([name]) and not Path(name).is_file():
            near = get_close_matches(name, manager.all_tasks, n=3, cutoff=0.6)
            hint = (
                f"Did you mean {', '.join(near)}?"
                if near
                else "`--include-path DIR` adds task files of your own."
            )
            raise Problem(
                f"There is no task {name!r}, neither built in nor in lm-eval. {hint}"
            )
        try:
            tasks |= manager.load(manager.match_tasks([name]) or [name])["tasks"]
        except (
            Exception
        ) as e:  # datasets and huggingface_hub raise many kinds for one reason
            raise Problem(unloaded(name, e)) from e
    return tasks


def unloaded(name: str, error: BaseException) -> str:
    chain = [error]
    while following := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(following)
    words = " ".join(f"{type(e).__name__}: {e}" for e in chain)
    hub = any(sign in words for sign in UNREACHED)
    data = next(
        (p.split("'")[1] for p in words.split("Couldn't reach ")[1:] if p.startswith("'")),
        None,
    )
    if not hub:
        return (
            f"The task {name} can't be loaded: {type(error).__name__}: {str(error)[:300]}"
        )
    which = (
        f"The data set {data} of the task {name}"
        if data
        else f"The data set of the task {name}"
    )
    return (
        f"{which} is not on this machine, and the Hub can't be reached. On a machine that reaches it, run `hf download "
        f"--repo-type dataset {data or 'NAME'}`, and copy its cache to HF_HOME here. Or write a task file whose "
        "dataset_path is json and whose data_files are local, and give its folder with --include-path."
    )


def check_likelihoods(
    job: dict[str, Any], server: Server, tasks: dict[str, Any], manager: TaskManager
) -> bool:
    """Return whether a task needs log-likelihoods; raise where the server doesn't give them for a prompt."""
    needing = [name for name, task in tasks.items() if task.OUTPUT_TYPE in BY_LIKELIHOOD]
    if not needing:
        return False
    if job["form"] == "chat":
        why = "the chat route doesn't return them: use --form completions"
    elif returns_likelihoods(job, server):
        return True
    else:
        why = "this server doesn't return them (echo and logprobs on /v1/completions; vLLM does)"
    names = [n for n in manager.all_tasks for task in needing if spoken(n, task, manager)]
    instead = f" A generative form: {', '.join(dict.fromkeys(names[:3]))}." if names else ""
    raise Problem(
        f"{', '.join(needing[:3])}: scored by log-likelihoods of the prompt, and {why}.{instead}"
    )


def returns_likelihoods(job: dict[str, Any], server: Server) -> bool:
    """Return whether the server gives the log-likelihoods of a short prompt."""
    body = {
        "model": job["model"],
        "prompt": "One two three",
        "max_tokens": 1,
        "echo": True,
        "logprobs": 1,
    }
    choices = server.post(job["url"], {**body, "temperature": 0}).get("choices") or [{}]
    logprobs = choices[0].get("logprobs") or {}
    return len(logprobs.get("token_logprobs") or []) > 2


def spoken(name: str, task: str, manager: TaskManager) -> bool:
    """Return whether a name is a generative form of a task."""
    stem = task.removesuffix("_choices")
    longer = (
        name.startswith(stem)
        and name not in (task, stem)
        and any(sign in name for sign in SPOKEN)
    )
    return longer or (name == stem != task)


# ---- results ----


def answers(
    task: str, sample: dict[str, Any], about: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return one for each metric of a sample that is a number."""
    extracted = sample["filtered_resps"][0]
    target, answer = sample["target"], sample["resps"][0][0]
    if isinstance(answer, (list, tuple)):  # log-likelihoods: the likeliest of the choices
        texts = [arguments[1] for arguments in sample["arguments"]]
        best = max(range(len(texts)), key=lambda i: sample["resps"][i][0][0])
        answer = extracted = texts[best].strip()
        if isinstance(target, int) and target < len(texts):
            target = texts[target].strip()
    more = about.get(sample["prompt_hash"], {})
    more = {
        key: value for key, value in more.items() if key != "letters" and value is not None
    }
    return [
        {
            "task": task,
            "item": str(sample["doc_id"]),
            "metric": metric,
            "score": float(sample[metric]),
            "target": str(target),
            "answer": str(answer),
            "extracted": None if extracted == INVALID else str(extracted),
            "filter": "" if sample["filter"] == "none" else sample["filter"],
            "prompt_sha256": sample["prompt_hash"][:16],
            **more,
        }
        for metric in sample["metrics"]
        if isinstance(sample[metric], (bool, int, float))
    ]


def scores(
    results: dict[str, Any], names: list[str], tasks: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return those of the tasks that were asked for: of a group that has a score of its own, that one."""
    rows = results["results"]
    groups = [name for name in names if name not in tasks and has_score(rows.get(name, {}))]
    members = {
        task for group in groups for task in leaves(group, results["group_subtasks"])
    }
    out = []
    for name in [*groups, *(task for task in tasks if task not in members)]:
        inside = leaves(name, results["group_subtasks"]) if name in groups else [name]
        guessed = chance(results["samples"][name], tasks[name]) if name in tasks else None
        for metric, by, value in metrics(rows[name]):
            stderr = rows[name].get(f"{metric}_stderr,{by}")
            out.append(
                {
                    "task": name,
                    "metric": metric,
                    "score": float(value),
                    "filter": "" if by == "none" else by,
                    "items": items(inside, results),
                    "stderr": float(stderr) if isinstance(stderr, (int, float)) else None,
                    "version": str(results["versions"].get(name, "")),
                    "n_shot": results["n-shot"].get(inside[0]) or 0,
                    "chance": guessed,
                    "higher_is_better": results["higher_is_better"]
                    .get(name, {})
                    .get(metric)
                    is not False,
                }
            )
    return out


def has_score(row: dict[str, Any]) -> bool:
    return any("," in key for key in row)


def items(tasks: list[str], results: dict[str, Any]) -> int:
    """Return how many items of these tasks were asked."""
    return sum(results["n-samples"][task]["effective"] for task in tasks)


def metrics(row: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield each metric of a task that is a number, with its filter: lm-eval's keys are METRIC,FILTER."""
    for key, value in row.items():
        metric, comma, by = key.partition(",")
        if comma and not metric.endswith("_stderr") and isinstance(value, (int, float)):
            yield metric, by, value


def chance(samples: list[dict[str, Any]], task: Any) -> float | None:
    """Return the score that guessing reaches; None where an answer isn't one of several choices."""
    choices = [len(sample["arguments"]) for sample in samples]
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    return sum(1 / n for n in choices) / len(choices) if choices else 0


def leaves(name: str, subtasks: dict[str, list[str]]) -> list[str]:
    return (
        [leaf for child in subtasks[name] for leaf in leaves(child, subtasks)]
        if subtasks.get(name)
        else [name]
    )


def dropped(model: Recorded) -> int:
    """Count prompts of which lm-eval dropped a part, or the server: their lengths differ, their tokens don't."""
    seen = [
        (a["prompt_tokens"], a["letters"])
        for a in model.about.values()
        if a["prompt_tokens"]
    ]
    most = max((tokens for tokens, _ in seen), default=0)
    full = [letters for tokens, letters in seen if tokens == most]
    cut = most > FULL * model.max_length and len(full) > 1 and max(full) > 1.1 * min(full)
    return model.truncated + (len(full) if cut else 0)


def work(job: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    manager = task_manager(job)
    tasks = load(job, manager)
    names = [
        match for name in job["tasks"] for match in manager.match_tasks([name]) or [name]
    ]
    server = Server(job)
    chat = job["form"] == "chat"
    likelihoods = check_likelihoods(job, server, tasks, manager)
    model = (ChatModel if chat else CompletionsModel)(
        server,
        model=job["model"],
        base_url=job["url"],
        num_concurrent=job["concurrency"],
        seed=job["seed"],
        max_length=job["max_length"] or 1 << 20,
    )
    if likelihoods:
        model.tokenizer, model.tokenizer_backend = RemoteTokens(server), "remote"
    more = {"max_gen_toks": job["max_tokens"]} if job["max_tokens"] else {}
    results = simple_evaluate(
        model,
        tasks=names,
        task_manager=manager,
        num_fewshot=job["num_fewshot"],
        limit=job["limit"],
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
        system_instruction=job["system"],
        gen_kwargs={**more, **job["gen_kwargs"]} or None,
        random_seed=job["seed"],
        numpy_random_seed=job["seed"],
        torch_random_seed=None,
        fewshot_random_seed=job["seed"],
        bootstrap_iters=1000,
    )
    listed = [
        a
        for task, samples in results["samples"].items()
        for s in samples
        for a in answers(task, s, model.about)
    ]
    return {
        "answers": listed,
        "scores": scores(results, names, tasks),
        "truncated": dropped(model),
        "version": version("lm_eval"),
        "duration_s": time.monotonic() - begun,
    }


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text())
    try:
        out, code = work(job), 0
    except Problem as e:
        out, code = {"problem": str(e)}, 3
    partial = Path(job["out"] + ".partial")
    partial.write_text(json.dumps(out))
    partial.replace(job["out"])
    return code


if __name__ == "__main__":
    sys.exit(main())
