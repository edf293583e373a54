"""Records of a run: decoded from its spool, with settled token counts and without a key that a server sent back."""

import re
from collections.abc import Callable, Iterator, Sequence

from dyno import secrets
from dyno.errors import StoreError, TargetError
from dyno.facts.client import ClientFacts
from dyno.facts.record import Record
from dyno.facts.request import Request
from dyno.facts.trial import TrialSpec
from dyno.load import decode
from dyno.load.progress import Stop
from dyno.load.protocols import PROTOCOLS
from dyno.load.spool import responses
from dyno.measure.counting import Counting, length_is_known
from dyno.store.run import Manifest, Run
from dyno.workload.tokenizer import Tokenizer

_CHUNK = re.compile(rb"\r\n[0-9a-fA-F]{1,8}\r\n")


def records(
    run: Run, manifest: Manifest, client: ClientFacts | None, tokenizer: Tokenizer | None, wordless: bool
) -> Iterator[Record]:
    """Yield the run's records, decoded while its spool exists. `wordless`: without what a server may have repeated."""
    if not run.spool_path.exists():
        yield from run.records()
        return
    protocol = PROTOCOLS[manifest.trial.target.backend]
    start, unasked = (client.start_ns, client.unasked) if client else (None, ())
    sampling = tokenizer is not None and tokenizer.counted_by == "tokenizer"  # a server isn't asked for no reason
    settling = Counting(_counter(tokenizer), length_is_known(manifest.trial), sampling)
    lengths = run.lengths()
    if not lengths:
        raise StoreError(f"{run.requests_path} is empty: without it, {run.spool_path.name} can't be decoded.")
    for record in decode.records(run.spool_path, lengths, protocol, start, unasked):
        settling.settle(record)
        if wordless:
            record.text, record.error_detail = "", ""
            record.model = manifest.target.model if record.model == manifest.target.model else None
            record.finish_reason = record.finish_reason if record.finish_reason in ("stop", "length") else None
        yield _cleaned(record)


def check_warmup(run: Run, trial: TrialSpec, requests: Sequence[Request], stop: Stop) -> None:
    """Raise TargetError if no warm-up request got through: no other will, and now is better than after a thousand
    failures."""
    protocol = PROTOCOLS[trial.target.backend]
    errors = [r for r in map(_cleaned, decode.records(run.warmup_path, requests, protocol)) if r.error]
    run.warmup_path.unlink()
    if len(errors) == len(requests) and not stop.requested:
        raise TargetError(
            f"All {len(requests)} warm-up requests failed ({errors[0].error}: {errors[0].error_detail}), so nothing "
            "was measured. Check --backend, --endpoint and --model."
        )


def _cleaned(record: Record) -> Record:
    """Remove a key that the server has sent back, by now in one piece whatever the reads, chunks and escapes were."""
    for name in ("text", "model", "finish_reason", "error", "error_detail"):
        setattr(record, name, secrets.clean(getattr(record, name)))
    record.error_detail = record.error_detail[:300]  # after that: half a key is a leak too
    return record


def _counter(tokenizer: Tokenizer | None) -> Callable[[str], int | None] | None:
    """Return a function that counts the tokens of an answer, as long as the tokenizer's server can be asked."""
    if tokenizer is None:
        return None
    gone = False

    def count(text: str) -> int | None:
        nonlocal gone
        if not gone:
            try:
                return max(tokenizer.count(text) - tokenizer.count(""), 0)
            except TargetError:  # the server's own, and it has ended
                gone = True
        return None

    return count


def keyed(trial: TrialSpec) -> bool:
    """Whether its requests carried secrets, which are in no file."""
    return bool(trial.target.header_names) or secrets.HIDDEN in str(trial.extra_body)


def key_came_back(run: Run) -> bool:
    """Whether a key is in an answer's words, or anywhere in its bytes, over the bounds of reads and HTTP chunks too.
    The spool has stars only over what came in one piece."""
    if any(secrets.HIDDEN in f"{r.text} {r.model} {r.finish_reason} {r.error_detail}" for r in run.records()):
        return True
    for raw in responses(run.spool_path) if run.spool_path.exists() else []:
        for data in (raw, _CHUNK.sub(b"", raw)):
            text = data.decode("utf-8", "replace")
            if secrets.clean(text) != text:
                return True
    return False
