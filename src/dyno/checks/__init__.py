"""The list of checks: each states its findings, their levels, when they appear and what to do, and the evidence needed.

The documentation lists the findings from here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from dyno import plugins
from dyno.checks import (
    answers,
    client,
    comparability,
    consistency,
    correctness,
    engine,
    host,
    inputs,
    load,
    machine,
    network,
    physics,
    quality,
    requests,
    statistics,
    tokens,
)
from dyno.checks.comparability import Objection, Two
from dyno.checks.consistency import CLIENTS, WHOLE_RUN
from dyno.checks.evidence import Circumstances, Evidence, QualityEvidence
from dyno.checks.inputs import (
    ACCELERATOR,
    ACTIVE,
    DURATION,
    ERROR,
    FAILURES,
    ITERATIONS,
    LENGTHS,
    LOAD,
    MODEL,
    PEAKS,
    PRICE,
    REQUESTS,
    SINGLE,
    SLOTS,
    TOKENS,
    Needs,
    PeaksOf,
    Unchecked,
    both,
    compared,
    in_a_closed_loop,
    of_fixed_lengths,
    of_kinds,
    of_tools,
    reporting,
    served,
    where,
    with_percentiles,
)
from dyno.facts.finding import Finding, worst_first
from dyno.facts.imported import Document, Row
from dyno.facts.metric import TOKEN_THROUGHPUTS
from dyno.facts.rig import Rig
from dyno.http import Url

# server, offline, quality: one of dyno's own runs, with all its records. run: one of the first two.
# rig: the machine on which dyno ran. host: a run on it, of a study that wants settings of the machine.
# row: a result of another tool. any_row: one of dyno's own too, which was examined as a run when it was measured.
# rows: all results that were read. roofline: these, with the peaks of their machines. duplicates: pairs of them.
# repeats: one trial's speeds. pair: two settings that are compared. documents: reports, with the words around results.
Need = Literal["server", "offline", "quality", "run", "rig", "host", "row", "any_row", "rows", "roofline", "duplicates",
               "repeats", "pair", "documents"]  # fmt: skip


class FindingGuide(NamedTuple):
    """A finding in the reference."""

    levels: str  # and when each applies
    when: str
    advice: str  # in every finding that has no more specific one


class Check:
    """The findings of a problem, and a function for each kind of evidence that can show it.

    `needs`: the inputs that it needs from other tools' results. A check of such results states them: [] if it only
    compares figures that are there. Without a function it only describes findings that other rooms make. `short_run`:
    every short run has its notes; what is printed joins them to one line.
    """

    def __init__(
        self,
        about: Mapping[str, tuple[str, str, str]],
        *,
        needs: Sequence[Needs] | None = None,
        short_run: bool = False,
        **judges: Callable[[Any], Iterable[Any]],
    ) -> None:
        self.about = {code: FindingGuide(*words) for code, words in about.items()}
        self.judges = judges
        self.needs = needs
        self.short_run = short_run

    def run(self, evidence: Mapping[str, Any]) -> Iterator[Any]:
        for need, judge in self.judges.items():
            if need in evidence:
                yield from map(self._advised, judge(evidence[need]))

    def _advised(self, result: Any) -> Any:
        if isinstance(result, Objection):
            return result._replace(finding=self._advised(result.finding))
        return (
            result
            if result.advice
            else replace(result, advice=self.about[result.code].advice)
        )


CHECKS = (
    Check({
        "requests.none_completed": ("void", "No request completed.",
            "Nothing was measured. Check the failures and the server's log."),
        "requests.failed": ("doubt; void from half of the requests",
            "Some requests failed; METHOD.md lists the kinds, such as `aborted` (by the server) or `cut`. In tables "
            "without a count: one series stops rising where another continues.",
            "A server that drops requests is faster for the rest. Fix the cause, or compare only with runs that failed "
            "as often."),
    }, server=requests.failed, offline=requests.failed, row=requests.failed, rows=requests.dropped,
        needs=[served(REQUESTS, FAILURES)]),
    Check({
        "requests.cut_short": ("doubt", "The run was interrupted, or the server went away.",
            "The figures cover only the part before that. Run it again."),
    }, server=requests.cut_short, offline=requests.cut_short),
    Check({
        "answers.form": ("note; doubt above 1 %",
            "Answers don't fit the JSON schema that their requests prescribe, or call unknown tools, or with arguments "
            "of other types.",
            "Speed is worth nothing for an answer that can't be used. Check that the server enforces the form, and "
            "that --output-len leaves room for it."),
    }, server=answers.forms),
    Check({
        "answers.constrained": ("note",
            "Answers of a prescribed form are slower than the others of the same load: TPOT by over 10 %, or TTFT by "
            "over 50 %, and by more than chance.",
            "The server's grammar backend takes time for each token, or for each new schema "
            "(--structured-kind json-unique shows which)."),
    }, server=answers.constrained),
    Check({
        "requests.end_at_once": ("note; doubt above 1 %", "Answers contain only the end token.",
            "They count as completed and have no latency. --ignore-eos makes every answer as long as requested."),
    }, server=requests.end_at_once),
    Check({
        "requests.resent": ("note; doubt from more than one per connection",
            "At least two requests were sent again because the server had closed a kept-alive connection.",
            "Normal for a server that closes after each answer. Otherwise look for refusals in its log."),
    }, server=requests.resent),
    Check({
        "requests.unasked": ("doubt", "The server sent more answers on a connection than were requested. All requests "
            "on that connection count as failed, because their answers can't be matched.",
            "A proxy mixes up connections, or the server answers twice. Check both."),
    }, server=requests.unasked),
    Check({
        "requests.unaccounted": ("void", "Completed, failed and cancelled requests don't add up to the requests sent, "
            "or with skipped ones to those planned.",
            "Records are missing, so all figures are incomplete. Run it again, and report this as a bug."),
    }, server=requests.unaccounted),
    Check({
        "requests.skipped": ("doubt; note if the client cancelled the earlier request", "Requests were not sent "
            "because an earlier request of their session failed or was cancelled.",
            "Later turns are the long ones: the server had less work than planned. Fix the failures first."),
    }, server=requests.skipped),
    Check({
        "requests.cancelled_went_on": ("note", "The server's own count of output tokens exceeds the tokens delivered "
            "by over 10 % of the rest of the cancelled requests.",
            "The server doesn't notice, or notices late, that a client has gone: cancelled requests keep their place. "
            "Check proxies between dyno and the engine, too."),
    }, server=requests.cancelled),
    Check({
        "correctness.empty": ("void; doubt for a single answer, or if the server counts tokens in them",
            "All answers of the correctness check, before or after the load, have no text.",
            "An engine that answers nothing is fast. Check the chat template, the end token and the engine's log; "
            "tokens without text may be hidden reasoning."),
        "correctness.garbage": ("void if several answers repeat one character, or if whole answers are the same for "
            "every prompt; else doubt", "All answers of the correctness check only repeat a short text (`!!!!`), are "
            "largely unreadable, or are the same for every prompt. Not with `load_format = \"dummy\"`.",
            "Nonsense is generated as fast as sense. Check weights, quantization and chat template, and try another "
            "version. --no-correctness-check is for random weights."),
    }, server=correctness.nonsense),
    Check({
        "correctness.changed": ("doubt", "A greedy answer after the load differs from the one before, also when asked "
            "again.", "The load changed the engine's answers. Restart it and measure again; if it repeats, check its "
            "cache settings and version."),
        "correctness.not_deterministic": ("note", "A greedy answer changes from one request to the next.",
            "Some engines and GPUs are not deterministic at temperature 0. Don't read small differences between "
            "single answers as a change."),
    }, server=correctness.changed),
    Check({
        "correctness.failed": ("doubt", "Requests of the correctness check failed.",
            "The check is incomplete. Check the server's log."),
    }, server=correctness.failed),
    Check({
        "requests.unknown_end": ("doubt", "Answers end with a finish reason that dyno doesn't know, or with none where "
            "others have one.",
            "Look up what the server means by it. If it gave these answers up, they are failures: its speed is lower."),
    }, server=requests.unknown_end),
    Check({
        "consistency.command": ("note; doubt if more completed than requested",
            "The concurrency or number of requests in a result differs from its command.",
            "Print the command of each result."),
    }, row=requests.more_than_asked, needs=[served(REQUESTS, FAILURES)]),
    Check({
        "requests.empty": ("note; doubt above 1 %, void above 10 %",
            "Answers without a token count as successes, according to the lists of single requests.",
            "They did no work; exclude them from rates and latencies. Find out why the model stops at once: a base "
            "model with chat prompts, or a truncated prompt."),
    }, row=requests.empty, needs=[served(SINGLE)]),
    Check({
        "requests.zeros_in_mean": ("doubt; void above 1 %",
            "The reported mean TTFT includes requests with 0 ms. The finding gives mean and median without them.",
            "Use the figures over requests with a token."),
    }, row=requests.zeros_in_mean, needs=[served(SINGLE)]),
    Check({
        "requests.errors_counted": ("doubt", "Requests with an error count as completed.",
            "Their tokens are part of the throughput. Exclude them."),
    }, row=requests.errors_among_successes, needs=[served(SINGLE)]),
    Check({
        "model.not_listed": ("doubt", "The server doesn't list the requested model.",
            "Some servers answer to any name with the model they have. Set the right one with --model."),
        "model.other_answered": ("void; doubt if the name begins with the requested one",
            "Answers carry another model's name.",
            "The figures may be another model's. Check --model and what the server has loaded."),
    }, server=engine.model_name),
    Check({
        "engine.unverified": ("doubt", "A running server doesn't report a setting that `--engine openai` states.",
            "Check the command that started it, or let dyno start it."),
        "engine.not_as_said": ("void", "A running server's version, quantization, context, slots or cache type "
            "differs from the stated setting (`--engine openai`). llama-bench reports another setting than its flags.",
            "The figures belong to another setting. Start the right server, or correct the setting."),
    }, server=engine.as_said, offline=engine.as_asked),
    Check({
        "engine.quantization": ("void", "The model's name states one quantization, or a family such as q8, and the "
            "server another.",
            "Probably the server of an earlier test is still running. Stop it and start the right one."),
    }, server=engine.quantization_named),
    Check({
        "engine.other_weights": ("void", "dyno quantized the model to one type, and the engine serves another.",
            "The engine loaded other files, or converts them while loading. Read its command in engine.json, and "
            "`dyno models verify` checks the files."),
    }, run=engine.quantization_made),
    Check({
        "engine.died": ("void", "The engine that dyno started died under the load.",
            "Check engine.log for the cause."),
    }, server=engine.died),
    Check({
        "engine.frozen": ("doubt", "No stream moved although requests were open, for at least 0.3 s, 20 median gaps "
            "and 3 times the usual time of the waiting prompts. `dyno.unfrozen` has the figures without that time.",
            "The engine, its machine or the network stalled. Check the engine's log, a paused machine and a full disk, "
            "then measure again."),
    }, server=engine.frozen),
    Check({
        "engine.no_drafts": ("doubt", "Offline: speculative decoding was on, but nothing was drafted.",
            "This is the speed without speculation. n-grams find nothing in random prompts: use a dataset of texts."),
    }, offline=engine.no_drafts),
    Check({
        "cache.not_emptied": ("doubt; note if the server reports no cache hits",
            "The prefix cache is on and could not be emptied before the load.",
            "Turn it off (prefix_caching = false), or restart the engine for each trial."),
    }, server=tokens.cache_emptied),
    Check({
        "tokens.text_differs": ("note; doubt from a factor of 2",
            "The reported output tokens and the tokens in the answers' text differ by more than a fifth.",
            "Requested tokens were counted instead of received ones, or another tokenizer was used. Read some answers "
            "before you use tokens/s."),
    }, row=tokens.counted_again, needs=[where(reporting("retokenized_output_tokens"), TOKENS)]),
    Check({
        "tokens.output_short": ("note; doubt with `--ignore-eos` and in other tools' results",
            "Answers are shorter than requested: under 98 % of the tokens (90 % in other tools' results).",
            "Compare tokens/s, not requests/s, or make lengths equal with --ignore-eos."),
    }, server=tokens.output_short, offline=tokens.output_short, row=tokens.output_short,
        needs=[where(of_fixed_lengths, TOKENS, REQUESTS, LENGTHS)]),
    Check({
        "tokens.output_long": ("doubt", "Answers are longer than requested: over 102 % of the tokens.",
            "The server ignores the requested length. Compare tokens/s and TPOT, not requests/s and E2EL."),
    }, server=tokens.output_long),
    Check({
        "tokens.impossible": ("doubt", "The server's token count is impossible: negative, or more than requested and "
            "more than the chunks received (for a prompt: over 16 times the planned length). dyno's count is used.",
            "Check what fills in `usage`: the engine or a gateway."),
        "tokens.miscounted": ("doubt", "The server's count and dyno's differ by half or more: in the first 50 answers, "
            "if there is a local tokenizer, or in answers whose text is too short for the count.",
            "dyno uses the server's count, which is right for hidden reasoning. Otherwise --tokenizer belongs to "
            "another model, or the server's usage is wrong."),
    }, server=tokens.believed),
    Check({
        "tokens.input_length": ("doubt; note for a chat template",
            "Prompts are not as long as requested: off by over 2 % (10 % in other tools' results).",
            "The server truncates prompts, or the tokenizer belongs to another model."),
        "tokens.input_approximate": ("note; doubt without usage", "Prompts were generated without a tokenizer.",
            "For prompts of an exact length, give --tokenizer (a folder with tokenizer.json, or a Hub name)."),
    }, server=tokens.input_length, row=tokens.input_length, needs=[where(of_fixed_lengths, TOKENS, REQUESTS, LENGTHS)]),
    Check({
        "tokens.media": ("note; doubt above 50 %",
            "The server counts other tokens for images than the model's rule.",
            "If it counts too few, the images may not reach the model: ask it what an image shows. Else its image "
            "processor has other settings; --image-tokens names the rule."),
    }, server=tokens.media),
    Check({
        "tokens.by_tokenizer": ("note", "The server reports no usage; dyno tokenized the text.",
            "Counts may differ from the server's by a few tokens per answer."),
        "tokens.by_chunks": ("doubt", "The server reports no usage and there is no tokenizer: chunks were counted.",
            "If chunks carry several tokens, tokens/s and TPOT are wrong. Give --tokenizer."),
    }, server=tokens.counting),
    Check({
        "tokens.bundled": ("note; doubt if TPOT is unknown or known only within bounds", "Chunks carry several tokens.",
            "To compare with other engines, use dyno's TPOT or ITL per token. vLLM's TPOT takes the first chunk for "
            "one token."),
    }, server=tokens.bundled),
    Check({
        "stream.buffered": ("doubt", "Over a tenth of the answers arrived in one piece.",
            "TTFT is the time of the whole answer; TPOT and ITL mean nothing. Look for a buffering proxy."),
    }, server=tokens.buffered),
    Check({
        "cache.depth_missed": ("void", "Micro test at a depth: over 5 % more tokens were processed than the test has, "
            "so part of the context was not cached.",
            "The speed covers all of them, at a smaller depth. Turn the prefix cache on and choose a depth of whole "
            "cache blocks (vLLM: 16 tokens on a GPU, 128 on a CPU)."),
    }, offline=tokens.depth_missed),
    Check({
        "cache.reuse_missed": ("note", "The server reports less than half of the prefix reuse that the traffic allows, "
            "and that is at least 5 % of the prompt tokens.",
            "TTFT is that of prompts processed again. A larger KV cache or prefix caching may lower it."),
    }, server=tokens.reuse_missed),
    Check({
        "cache.sent_before": ("doubt", "An earlier run under `--runs` sent the same prompts to the same address, and "
            "the server doesn't report cache hits.",
            "TTFT may be too good, unless the server was restarted or has no prefix cache. Use another --seed."),
    }, server=tokens.sent_before),
    Check({
        "consistency.sums": ("doubt; void above 1 %", "Requests or tokens divided by the duration are not the reported "
            "throughput (tools that count the whole run).",
            "One of the two is wrong or comes from a different run. Check the raw results."),
    }, any_row=consistency.sums,
        needs=[where(both(of_tools(*WHOLE_RUN), reporting(*TOKEN_THROUGHPUTS)), DURATION, TOKENS),
        where(both(of_tools(*WHOLE_RUN), reporting("request_throughput")), DURATION, REQUESTS)]),
    Check({
        "consistency.percentiles": ("void",
            "Percentiles are out of order, or higher than the mean allows: n × mean ÷ samples above it.",
            "The figures come from different requests, or a unit is wrong. Check the raw results."),
    }, any_row=consistency.percentiles, needs=[where(with_percentiles, REQUESTS)]),
    Check({
        "consistency.tail_below_mean": ("doubt", "The p99 of TTFT, TPOT or E2EL is below its mean.",
            "The two cover different requests, or a few extreme requests dominate the mean."),
    }, any_row=consistency.tail_below_mean, needs=[]),
    Check({
        "consistency.end_before_first": ("void",
            "The mean, median or a percentile of E2EL is below the same statistic of TTFT.",
            "The two cover different requests, or a unit is wrong."),
    }, any_row=consistency.end_before_first, needs=[]),
    Check({
        "consistency.latencies": ("doubt", "E2EL − TTFT exceeds 1.1 × ITL × (tokens − 1).",
            "TTFT, ITL and E2EL cover different requests, or too few tokens were counted."),
    }, any_row=consistency.latencies,
        needs=[where(both(of_tools(*CLIENTS), reporting("mean_itl_ms")), TOKENS, REQUESTS)]),
    Check({
        "consistency.in_flight": ("void",
            "requests/s × E2EL (Little's law) exceeds 1.05 × the concurrency or the number of requests.",
            "Latency, rate and limit can't all be right. Check the raw results."),
        "consistency.mean_tpot": ("note; doubt above 1.2 × with a rate or concurrency",
            "requests/s × (TTFT + (tokens − 1) × mean TPOT) exceeds 1.05 × the concurrency or number of requests.",
            "Short answers, which wait for a batch, dominate the mean TPOT. Use the median, or ITL."),
    }, any_row=consistency.in_flight,
        needs=[where(both(in_a_closed_loop, reporting("mean_tpot_ms", "mean_e2el_ms")), TOKENS, REQUESTS, LOAD)]),
    Check({
        "consistency.zero_ttft": ("doubt", "The mean or median TTFT is 0, but there is a TPOT.",
            "The client counted answers without a token, or missed the first tokens."),
    }, any_row=consistency.zero_first_token, needs=[]),
    Check({
        "consistency.peak_below_mean": ("note", "The peak output throughput is below the mean.",
            "The tool counts chunks for the peak, and a chunk holds several tokens. Don't use the peak."),
    }, any_row=consistency.peak, needs=[]),
    Check({
        "consistency.two_runs": ("doubt; void above 50 %",
            "Offline: batch × (input + output) ÷ latency is over 2 % off the throughput in the same row.",
            "Latency and throughput come from different runs, or the batch size is wrong."),
    }, any_row=consistency.two_runs, needs=[where(of_kinds("throughput", "latency"), LENGTHS)]),
    Check({
        "consistency.price": ("doubt", "Price ÷ throughput is over 1 % off the reported cost.",
            "State which tokens are counted, and how many machines the price covers."),
    }, any_row=consistency.price, needs=[where(reporting("cost_per_million_tokens"), PRICE)]),
    Check({
        "consistency.more_than_offered": ("doubt",
            "At least 100 requests were served at over 1.25 × the offered rate.",
            "The rate belongs to another run, or requests were not sent as planned."),
    }, any_row=consistency.rate_exceeds, needs=[served(REQUESTS, LOAD)]),
    Check({
        "consistency.beyond_the_run": ("doubt; void from 2 × with answers of one length",
            "Median TPOT × (tokens − 1) exceeds 1.5 × the duration of the run.",
            "This is not a time per token. Tokens arrived all at once, or were miscounted."),
    }, any_row=consistency.beyond_the_run,
        needs=[where(both(of_tools(*CLIENTS), reporting("median_tpot_ms")), DURATION, TOKENS, REQUESTS)]),
    Check({
        "consistency.tokens": ("doubt", "Offline: requests × (input + output) is over 2 % off the reported tokens.",
            "The lengths or the number of requests belong to another row."),
    }, any_row=consistency.batch_counts, needs=[where(of_kinds("throughput", "latency"), LENGTHS)]),
    Check({
        "comparability.work_differs": ("doubt; void above 25 % between different subjects",
            "Input or output tokens per request differ by over 10 % under the same load.",
            "Compare tokens/s, or send the same prompts and make answers equally long (--ignore-eos)."),
    }, rows=comparability.work, needs=[compared(TOKENS, REQUESTS)]),
    Check({
        "comparability.success_differs": ("void; doubt within one subject",
            "Success rates differ by over 5 points under the same load.",
            "Rates and latencies of the successful requests alone are not comparable. Make both complete all."),
    }, rows=comparability.success, needs=[compared(FAILURES, REQUESTS)]),
    Check({
        "comparability.loads_differ": ("note", "One series has results at higher loads than another.",
            "State why the others are missing; they may have failed."),
    }, rows=comparability.loads, needs=[compared(LOAD)]),
    Check({
        "comparability.model_differs": ("doubt", "An instruction-tuned model is compared with its base model.",
            "Use the same model for both."),
    }, rows=comparability.models, needs=[compared(MODEL)]),
    Check({
        "comparability.parts_of_a_node": ("note",
            "Results with different numbers of accelerators are shown under the same load.",
            "Compare throughput per accelerator, or cost."),
    }, rows=comparability.parts_of_a_node, needs=[compared(ACCELERATOR, kinds=("serve", "throughput", "latency"))]),
    Check({
        "comparability.nothing_paired": ("void, refused", "No workload and load is on both sides.",
            "Measure one under the other's load."),
        "comparability.ambiguous": ("void, refused", "Several settings match several others equally well.",
            "Name single runs, or a part of a study (STUDY:WORDS)."),
        "comparability.no_metric": ("void, refused", "No metric is left that both sides report with one definition.",
            "Choose others with --metric, or measure both with one tool."),
    }),
    Check({
        "comparability.void_side": ("void, refused", "A side is void.",
            "Measure it again."),
        "comparability.doubtful_side": ("doubt", "A side has doubts of its own.",
            "`dyno runs show` lists them. A problem on one side alone looks like a difference."),
    }, pair=comparability.sides),
    Check({
        "comparability.load": ("void", "With `--anyway`: workload or load differ.",
            "Measure both under the same load."),
    }, pair=comparability.load),
    Check({
        "comparability.requests": ("doubt", "The two sides had different numbers of requests.",
            "Send the same number to both: ramp-up and drain weigh more in the shorter run."),
    }, pair=comparability.requests),
    Check({
        "comparability.asked": ("doubt", "Scores: task version, chat template, form, system message, token limit, "
            "sampling, requests in flight or lm-eval's version differ.",
            "Each changes scores by points, whatever the engine. Ask both in the same way."),
        "comparability.items": ("doubt", "Scores: the two sides have different items or another limit.",
            "Ask both the same items: then they are compared one by one."),
    }, pair=comparability.asked),
    Check({
        "comparability.at_chance": ("doubt", "Scores: one side is not above guessing.",
            "It can't show a loss of quality. Check template and form, or use an easier task."),
    }, pair=comparability.at_chance),
    Check({
        "comparability.other_process": ("note", "Quality was measured on another start of the engine than speed, "
            "with the same settings.",
            "Settings that an engine chooses at its start may differ. `[quality]` in a study asks the timed process."),
    }, rows=comparability.processes, needs=[]),
    Check({
        "comparability.prompts": ("note; doubt for datasets other than random", "The two sides had different prompts.",
            "Give both the same seed, dataset and tokenizer: lengths and contents affect latencies."),
        "comparability.tokenizers": ("doubt", "Prompts were generated with two tokenizers.",
            "Use prompts from one file, or compare by characters: a token is not the same amount of text."),
    }, pair=comparability.prompts),
    Check({
        "comparability.output_length": ("doubt",
            "Output tokens per request differ by over 2 %. From 5 %, requests/s and E2EL are excluded.",
            "Compare tokens/s, or fix the lengths (--ignore-eos, --random-output-len) and measure again."),
        "comparability.input_length": ("doubt; note for the same prompts",
            "Input tokens per request differ by over 2 %. From 5 %, requests/s, total tokens/s and TTFT are excluded.",
            "Give both prompts of the same length."),
    }, pair=comparability.lengths),
    Check({
        "comparability.failures": ("doubt; void, refused from 10 points",
            "The shares of failed requests differ by over 1 point.",
            "Fix the failures before you compare speeds."),
    }, pair=comparability.failures),
    Check({
        "comparability.definitions": ("note", "Two tools define a latency differently, or a definition is unknown. It "
            "is excluded, unless only an empty first chunk matters.",
            "Compare figures from one tool, or those that all define alike (throughput)."),
    }, rows=comparability.definitions_rows, pair=comparability.definitions, needs=[]),
    Check({
        "comparability.subject": ("note", "One setting differs; settings that follow from it are not counted.",
            "The comparison measures its effect, as far as settings are known."),
        "comparability.several_changes": ("doubt", "Several settings differ.",
            "Any of them may cause the difference. Change one at a time."),
        "comparability.nothing_changed": ("note", "No known setting differs.",
            "A difference comes from something unknown, or from chance."),
    }, pair=comparability.changes),
    Check({
        "comparability.accelerators": ("doubt", "The two sides used different numbers of accelerators.",
            "Compare whole machines, or throughput per accelerator at the latency you need."),
    }, pair=comparability.accelerators),
    Check({
        "comparability.single_runs": ("note", "There is one run on each side.",
            "Repeat both (`repeats = 3` in a study) before you call a difference of a few percent real."),
    }, pair=comparability.single_runs),
    Check({
        "load.rate_not_reached": ("doubt; note if a concurrency limits the requests",
            "A queue grew: three in four of the last requests took longer than three in four of the first, by over a "
            "tenth of the run. In a replay: the run took over 1.25 times as long as its requests were due. In "
            "other tools' results: under 90 % of the rate was served and the run continued long "
            "after sending, or a higher rate gave no more.",
            "Latency includes a queue that grows with the run. Lower the rate, or report this as the server's limit."),
    }, server=load.rate, row=load.rate_row, rows=load.rate_rows, needs=[served(LOAD, DURATION)]),
    Check({
        "load.not_sent": ("doubt", "The client reports that it sent under 90 % of the rate.",
            "The client fell behind, and no latency includes its delay. Use more clients, or report the actual rate."),
    }, row=load.not_sent, needs=[]),
    Check({
        "load.queue": ("note", "The mean TTFT is over a fifth of the run.",
            "Most of it is queueing; a longer run would report a longer time."),
    }, row=load.queue, needs=[served(DURATION)]),
    Check({
        "load.slots": ("doubt",
            "More requests were in flight than the engine processes at once, so its queue was measured.",
            "Queued requests inflate TTFT. Raise max_num_seqs (slots), or lower the load."),
        "load.saturated": ("note", "1.3 times the load gives under 3 % more throughput and 1.5 times the latency.",
            "More load adds only waiting from here. Report the knee."),
        "load.fell": ("note", "1.3 times the load gives over 5 % less throughput and 1.5 times the latency.",
            "More load makes it slower: requests are preempted, or the cache is too small. Check the engine's log."),
    }, server=load.slots, offline=load.slots, row=load.slots, rows=load.saturated,
        needs=[where(in_a_closed_loop, LOAD, SLOTS)]),
    Check({
        "load.streams_missing": ("doubt", "Under 95 % of the requested concurrency was reached.",
            "The client or the server's connection handling left slots empty; the load was lower than requested."),
    }, server=load.streams),
    Check({
        "load.repeated_prompts": ("doubt", "Prompts were sent more than once.",
            "A prefix cache makes repeats faster. Prepare more with --num-prompts, or use a larger dataset."),
    }, server=load.repeated_prompts),
    Check({
        "load.replay_late": ("doubt", "A limit on the requests in flight delayed the requests of a trace: by over "
            "10 ms and 2 % of the mean E2EL (p99).",
            "TTFT and E2EL from due include the wait. Raise --max-concurrency, or lower --speedup."),
    }, server=load.replay),
    Check({
        "load.no_chat_template": ("note", "The prompts of custom, sonnet or hf were sent without a chat template, "
            "because dyno found none. `vllm bench serve` applies the model's.",
            "Give the model's folder with --tokenizer, or use --backend openai-chat. --skip-chat-template says that "
            "plain prompts are meant."),
    }, server=load.no_template),
    Check({
        "load.profiled": ("doubt", "The engine's profiler ran during the load (--profile).",
            "Use the trace, and measure again without --profile."),
    }, server=load.profiled),
    Check({
        "load.left_out": ("note", "A part of the workload was not sent: requests of a session beyond the server's "
            "context, with those after them, or parts of a file that dyno can't use. Or rows of a trace were sorted.",
            "Figures cover the rest. For longer sessions, start the server with a longer context."),
    }, server=load.left_out),
    Check({
        "load.replicas_uneven": ("doubt; offline: note, doubt from 25 %",
            "A replica completed under 80 % of an even share (and 3 standard deviations less), or its mean TPOT is "
            "over 125 % of the others' (300 % below ten requests). Offline: its tokens/s are over 10 % (and 3 standard "
            "errors) below another's.",
            "The sum is not a multiple of one replica. Check the odd one's log, and what it shares: a device, cores, a "
            "link."),
        "load.replicas_apart": ("note; doubt from 5 %",
            "Offline: a replica began later than the first one by over 1 % of an iteration.",
            "The throughput counts the time from the first begin. Use longer iterations (--num-prompts, "
            "--output-len)."),
    }, server=load.replicas, offline=load.offline_replicas),
    Check({
        "load.replicas_share_cpu": ("note", "Several replicas ran without an accelerator of their own.",
            "They slow each other down: the sum says nothing about replicas on separate accelerators."),
    }, run=load.replicas_on_cpu),
    Check({
        "load.replicas_no_gain": ("doubt", "Several replicas have a lower throughput than one with the same settings "
            "and load.",
            "They share something that limits them: a device, cores, memory bandwidth. Give each its own, or use one."),
    }, rows=load.replicas_gain, needs=[]),
    Check({
        "client.proxy": ("note", "Requests went through a proxy named in the environment.",
            "A proxy adds latency and may buffer streams. To measure the server alone, add it to no_proxy."),
    }, server=client.proxy),
    Check({
        "client.network": ("note; doubt above 5 % of the median TTFT",
            "The load came over a network from another machine (`client = \"here\"`). The round trip is measured "
            "before and after the load.",
            "Compare only with runs over the same network, or let the load run on the rig (`client = \"rig\"`)."),
    }, server=network.round_trip),
    Check({
        "client.limits": ("doubt; void from half of the requests, or if none completed",
            "Requests failed at a limit of the client machine: open files, local ports or memory. `requests.failed` "
            "excludes them.",
            "Lower the load, or raise the limit named by error_detail in records.jsonl (`ulimit -n`, `ulimit -v`, "
            "net.ipv4.ip_local_port_range)."),
    }, server=client.limits),
    Check({
        "client.unseen_chunks": ("note above 1 % of the chunks; doubt if a figure is known only within bounds",
            "dyno (or one of its processes) was too busy to time some chunks: no free core, its CPU use, or a pause.",
            "Give dyno a core of its own, or run it on another machine."),
    }, server=client.unseen_chunks),
    Check({
        "client.clock_set": ("note", "The wall clock was set during the load; dyno's own clock timed those reads.",
            "Their times include dyno's own delay. Let the clock settle (NTP) before you measure small latencies."),
    }, server=client.clock_set),
    Check({
        "client.late_sends": ("doubt", "dyno sent late by over 2 % of the mean E2EL: on average in a closed loop (and "
            "over 1 ms), in the worst percentile otherwise (and over 10 ms).",
            "Service latency (from sent) is right, but the load came late."),
    }, server=client.late_sends),
    Check({
        "client.late_loop": ("doubt", "There are no kernel receive timestamps, and dyno's loop ran late.",
            "TTFT and ITL include that delay. Measure from Linux, or at a lower concurrency."),
    }, server=client.late_loop),
    Check({
        "client.busy": ("note above 90 %; doubt above 97 %",
            "dyno's sending process used most of a core, in a run of over a second.",
            "A faster server would not look faster. Share the load among more processes (--procs), or lower the "
            "concurrency."),
    }, server=client.busy),
    Check({
        "client.process_lost": ("doubt; void if all were lost, or no request completed",
            "A process of the client ended before its load was over: it was killed, or its machine is gone. "
            "`requests.failed` excludes its open requests (kind `lost`).",
            "The load was lower from then on. Look for the cause (memory, the system's log) and measure again."),
    }, server=client.lost),
    Check({
        "client.clock_uncertain": ("note; doubt above 1 % of the load's time",
            "The clock of a Ray node is known less exactly than 1 % of the median TTFT or TPOT.",
            "Each latency is measured by one node's clock and doesn't depend on it. The order of requests on different "
            "nodes does. Use nodes with a shorter round trip to dyno."),
        "client.clock_drift": ("doubt", "The clock of a Ray node ran over 500 ppm faster or slower than the one here.",
            "One of the two clocks is wrong. Times of that node are converted to the clock here. Check both machines."),
    }, server=client.clocks),
    Check({
        "client.others_cpu": ("doubt; note with accelerators", "Other processes used over 15 % of the cores (30 % in "
            "a load under a second) beside an engine that dyno started.",
            "The engine had less of the machine. Stop other processes and measure again."),
    }, server=client.others, offline=client.others),
    Check({
        "engine.preemptions": ("note; doubt from 1 % of the requests",
            "The engine evicted the KV cache of running requests and recomputed it.",
            "Latencies include that. Lower the load or max_num_seqs, or give the KV cache more memory."),
        "engine.unknown_variable": ("doubt", "By its log, the engine doesn't know an environment variable.",
            "The variable has no effect. Correct its name, or remove it."),
        "engine.setting_ignored": ("doubt", "By its log, the engine ignores a flag or variable.",
            "The figures don't show its effect. Remove it, or use a version that supports it."),
        "engine.setting_unsupported": ("note", "By its log, the engine doesn't officially support a setting "
            "for this model.", "Check its outputs before you publish figures."),
        "engine.setting_changed": ("doubt; note for a default that depends on the model",
            "By its log, the engine turned a feature on or off, or lowered a limit.",
            "State the actual setting with the figures, or set it explicitly."),
        "engine.no_graphs": ("doubt; note if the setting asks for it",
            "By its log, the engine runs without CUDA graphs or compilation.",
            "Short steps are slower without them. Compare only with engines that run the same way."),
        "engine.fallback": ("doubt", "By its log, the engine uses a slower kernel, attention backend or version of "
            "itself than it would choose.",
            "Fix the cause, or state the implementation with the figures."),
        "engine.not_offloaded": ("doubt", "There is an accelerator, and by its log llama.cpp keeps layers on the CPU. "
            "Not with `-ngl`.",
            "Use a build for the accelerator, free its memory, or set the number of layers with -ngl."),
        "engine.untuned_kernel": ("note", "By its log, the engine has no tuned configuration of a kernel for this "
            "device or quantization.",
            "Tuning may raise the speed. State it with the figures."),
        "engine.kv_scales": ("note", "By its log, the scales of a quantized KV cache are 1.0.",
            "The speed is right, the answers may be worse. Use a checkpoint with scales."),
        "engine.deprecated": ("note", "By its log, a flag or variable is deprecated.",
            "A newer version may refuse or ignore it. Use its replacement."),
        "engine.swap_space": ("note", "By its log, the swap space takes much of the memory.",
            "Lower --swap-space."),
    }, server=engine.preempted, run=engine.remarks),
    Check({
        "engine.restarted": ("doubt", "A counter in the engine's metrics went back during the load.",
            "The engine restarted, or several servers share the address. Check its log."),
    }, server=engine.restarted),
    Check({
        "load.engine_streams": ("note", "By its metrics the engine worked on under 80 % of the open requests (requests "
            "from 0.5 s; without `load.slots`).",
            "The rest waited in a gateway, in the server's HTTP or tokenizer, or in dyno."),
    }, server=load.engine_streams),
    Check({
        "load.other_requests": ("doubt", "By its metrics the engine had over 10 % (at a rate: 30 %) more requests than "
            "dyno had open, and more than one more.",
            "Others use the server, and both loads slow each other down. Measure it when they don't; look for a "
            "gateway's health checks and for clients that still run."),
    }, server=load.other_requests),
    Check({
        "telemetry.energy_differs": ("note",
            "Energy by counter and by power over time differ by over 5 %, in a load from 10 s.",
            "dyno reports the counter. Joules per token are only that accurate."),
    }, server=machine.energy),
    Check({
        "statistics.few_samples": ("note",
            "A percentile has fewer samples than it needs (p99: 662, p95: 130, p90: 64 at 99 % confidence).",
            "Send more requests, or report a lower percentile."),
    }, server=statistics.few_samples, row=statistics.few_samples, short_run=True,
        needs=[where(both(of_kinds("serve"), with_percentiles), REQUESTS)]),
    Check({
        "statistics.ramp_and_drain": ("note", "Under half of the run was at steady load. In other tools' results: "
            "under 80 % of the concurrency was in flight on average.",
            "Ramp-up and drain lower the throughput. Send several times as many requests as are in flight."),
    }, server=statistics.ramp, row=statistics.ramp, needs=[where(in_a_closed_loop, LOAD, REQUESTS)]),
    Check({
        "statistics.short": ("note", "The load lasted less than 5 s.",
            "Too short to average out variation. Send more requests."),
    }, server=statistics.short, short_run=True),
    Check({
        "statistics.few_iterations": ("note", "Offline: fewer than 3 iterations were measured.",
            "Measure at least three (--num-iters, -r; iterations in a study)."),
    }, offline=statistics.few_iterations, short_run=True),
    Check({
        "statistics.first_iteration": ("note; doubt above 5 % in dyno's own runs",
            "Offline: the first of 5 or more iterations took over 3 deviations and 2 % longer than the others' mean. "
            "In other tools' results: 20 % longer than their median.",
            "The engine was still warming up, and the mean includes that. Warm up longer, or exclude the first."),
    }, offline=statistics.first_iteration, row=statistics.first_iteration,
        needs=[where(of_kinds("latency", "micro"), ITERATIONS)]),
    Check({
        "statistics.unsteady": ("doubt above 10 %; in other tools' results note above 5 %, doubt above 20 %",
            "Offline: iterations have a large standard deviation, relative to their mean.",
            "Heat, clocks or other processes may cause that. Check the telemetry, warm up and measure again."),
    }, offline=statistics.unsteady, row=statistics.unsteady, needs=[where(of_kinds("latency", "micro"), ITERATIONS)]),
    Check({
        "statistics.drift": ("note",
            "In a closed loop, the median TTFT of the first and last third of the requests differ by a factor of 1.5.",
            "The server warmed up or slowed down, or requests are sorted. Warm up before, and run longer."),
    }, row=statistics.drift, needs=[where(in_a_closed_loop, LOAD, SINGLE)]),
    Check({
        "engine.second_attempt": ("note", "In a study: the first attempt of this trial failed.",
            "An engine that fails now and then may fail again. Check the log of its start."),
    }, run=engine.second_attempt),
    Check({
        "engine.variables_withheld": ("note", "Exported variables did not reach the engine in its container.",
            "A path must be mounted (`--engine-mount`); a device is chosen with `--devices`."),
    }, run=engine.variables_withheld),
    Check({
        "engine.memory_held": ("doubt",
            "Over 512 MiB of accelerator memory was not released within 30 s of the engine's stop.",
            "The next trial has that much less. `dyno doctor` shows which process holds it."),
    }, run=engine.memory_held),
    Check({
        "engine.misspelt_variable": ("doubt; note for an unlisted name that is like no other",
            "A variable in `env`, or an exported one, is nearly a well-known one, has a name that no shell can set, or "
            "is not in the installed vLLM's list.",
            "The engine probably doesn't read it, so the run had the default. Correct the name, or remove it."),
    }, run=engine.misspelt),
    Check({
        "engine.accelerator_unused": ("doubt",
            "dyno started an engine on a machine with accelerators, and it used none: it is dyno's own llama.cpp, "
            "or a build without CUDA, HIP or Vulkan.",
            "Put a llama-server built for the accelerator on PATH, name it with --engine-binary, or install one: "
            "dyno engines install llamacpp --by source --variant cuda. To measure the processor, say so: -ngl 0 for "
            "llama.cpp, the variant cpu of other engines."),
    }, run=engine.accelerator_unused),
    Check({
        "engine.generic_build": ("note",
            "llama.cpp on the CPU was built without instructions that this processor has, like the embedded one.",
            "A build for this machine is several times faster, most of all with quantized weights. Give one with "
            "--engine-binary before you compare engines or quantizations."),
    }, run=engine.generic_build),
    Check({
        "telemetry.throttled": ("doubt", "The engine's accelerators reduced their clocks for heat, a power brake or a "
            "hardware slowdown, in at least 5 % of the samples.",
            "The machine was too hot or short of power; results will differ on another day. Check cooling and power "
            "supply."),
    }, run=machine.throttled),
    Check({
        "telemetry.power_limited": ("note",
            "The engine's accelerators ran at their power limit in at least half of the samples.",
            "That is normal under full load. Compare only with machines of the same limit."),
    }, run=machine.power_limited),
    Check({
        "telemetry.sparse": ("note", "The machine was not sampled for over 2 s and five intervals.",
            "Peaks of power and memory may be missing. Latencies and throughput are not affected."),
    }, run=machine.sparse),
    Check({
        "physics.above_roofline": ("void; doubt up to 115 % of a measured peak", "Decode, prefill or the whole run "
            "exceeds the machine's bandwidth or arithmetic (a data sheet's by 2 % and 10 %), by lower bounds. In "
            "other tools' results by the model's name, for dense families only.",
            "Find out which: another model or quantization, cached prompts, buffered answers, or miscounted tokens."),
        "physics.far_below": ("note", "On a known accelerator, a single request decoded at under 5 % of bandwidth and "
            "arithmetic. In other tools' results: under 10 %, up to 4 at once, or a long prompt alone.",
            "Perhaps something else was measured: weights in CPU memory, a slow path in the engine, the network, the "
            "client. Check the engine's log."),
    }, run=physics.roofline, roofline=physics.roofline_rows,
        needs=[where(of_kinds("serve", "throughput", "latency", "micro"), MODEL, ACTIVE, ACCELERATOR, PEAKS)]),
    Check({
        "rig.accelerator_shared": ("doubt; note if the engine's processes are unknown",
            "Other processes used the engine's accelerators.",
            "They take compute, bandwidth and memory from the engine. Stop them, or use free accelerators."),
    }, rig=machine.accelerator_shared),
    Check({
        "rig.power_capped": ("note", "An accelerator's power cap is below its default.",
            "State it with the figures, or restore the default."),
    }, rig=machine.power_capped),
    Check({
        "rig.numa_balancing": ("note", "Automatic NUMA balancing is on, with several nodes and accelerators.",
            "The kernel moves pages in use, which slows results and makes them vary. AMD recommends "
            "`sysctl kernel.numa_balancing=0`."),
    }, rig=machine.numa_balancing),
    Check({
        "rig.governor": ("note", "A processor's governor is not `performance`, nor its preference.",
            "Clocks drop between an engine's steps. Use `cpupower frequency-set -g performance`, or state it with the "
            "figures."),
    }, rig=machine.governor),
    Check({
        "rig.iommu": ("note", "The IOMMU translates addresses for several AMD accelerators.",
            "That can slow transfers between them. AMD recommends iommu=pt on the kernel's command line."),
    }, rig=machine.iommu),
    Check({
        "rig.not_as_wanted": ("doubt", "A setting of the machine is not the one that the study wants (`host`).",
            "`dyno doctor --for STUDY` prints the commands that set it. Set it and measure again."),
    }, host=host.not_as_wanted),
    Check({
        "rig.memory_short": ("note; doubt above 10 % memory pressure",
            "Over 1 GiB and 1 % of memory is swapped out, or processes waited for memory.",
            "Swapped memory is slow. Stop other processes, or use a smaller model or cache."),
    }, rig=machine.memory_short),
    Check({
        "rig.hardware_differs": ("note", "Processor, memory or accelerators differ.",
            "The figures compare machines, whatever else changed."),
        "rig.software_differs": ("doubt", "System, kernel, driver, ROCm or container differ.",
            "Any of them may affect the figures. Measure both on the same one."),
        "rig.settings_differ": ("doubt", "Power cap, maximum clocks, partition, PCIe link or the host's state differ.",
            "Use the same settings, or the comparison includes their effect."),
        "rig.environment_differs": ("note", "Relevant environment variables differ.",
            "Set them alike, unless they are what you compare."),
    }, pair=comparability.rigs),
    Check({
        "statistics.single_run": ("note", "There is one run.",
            "Repeat the run before you call a small difference real."),
    }, run=statistics.single_run, rows=statistics.single_runs, needs=[],
        short_run=True),
    Check({
        "statistics.repeats_differ": ("doubt; note for unmarked repeats of other tools",
            "The output throughput of a trial's repeats has a standard deviation above 10 % of its mean. In other "
            "tools' results: a throughput or latency differs by over 20 %.",
            "Smaller differences between settings are noise. Check each repeat's own findings, and repeat more often."),
    }, rows=statistics.repeats, repeats=statistics.unlike_repeats, needs=[]),
    Check({
        "statistics.within_error": ("note", "Two scores differ by less than 1.96 of their standard errors.",
            "The data shows neither an improvement nor that accuracy was preserved."),
    }, rows=statistics.within_error, needs=[compared(ERROR, kinds=("quality",))]),
    Check({
        "consistency.copies": ("note", "Results in one file agree in all figures (at least six).",
            "They are copies, not repeats. Repeat the run to measure its variation."),
    }, rows=consistency.copies, needs=[]),
    Check({
        "consistency.twins": ("doubt; void if all figures agree, or with a witness", "Results of different models, "
            "quantizations, engines or loads agree within 0.1 % (duration) and 0.25 % (TPOT, ITL). A witness: their "
            "generation speeds, by another tool, differ by over 10 %.",
            "One server was probably measured twice: a client's --model doesn't choose what is served. Ask the server "
            "for its model."),
    }, rows=consistency.twins, needs=[compared(DURATION)]),
    Check({
        "comparability.multiplied": ("void", "Results have the same times as others and a whole multiple of their "
            "throughput (3 results, or 6 digits).",
            "Label them as an estimate, or measure them."),
    }, rows=consistency.multiples, needs=[]),
    Check({
        "consistency.reported_twice": ("note",
            "A table or another file repeats a result of the same model. It counts once.",
            "If these are separate runs, one of them has copied figures. Check the raw results."),
    }, duplicates=consistency.reported_twice, needs=[]),
    Check({
        "cache.warm": ("note; doubt with a witness", "One request at a time with prompts of all lengths: the median "
            "TTFT is within 1.3 decoding steps, the p99 within 1.15 of it. A witness: a measured prompt speed that "
            "needs 1.5 times as long.",
            "Prompts were probably in the prefix cache from an earlier run. Empty it, or restart the server."),
    }, rows=tokens.warm, needs=[]),
    Check({
        "cache.hits": ("doubt; note in other tools' results without random prompts", "Prompt tokens came from the "
            "prefix cache, beyond the requested prefix and a block each (other tools: over 1 %). By the server's "
            "answers (vLLM: `--enable-prompt-tokens-details`), else by its metrics.",
            "TTFT and throughput look better than they are. Use another --seed, or turn prefix caching off."),
        "cache.prefix_hits": ("doubt", "Offline: over 2 % of the prompt tokens came from the engine's prefix cache.",
            "Prefill looks faster than it is. Turn the cache off (--no-enable-prefix-caching), unless you measure it."),
    }, server=tokens.cached, offline=tokens.cached, row=tokens.cached, needs=[]),
    Check({
        "cache.later_faster": ("doubt", "The same load again has under 0.6 of the TTFT, and nothing else is faster.",
            "The first run filled the prefix cache, or served as a warm-up."),
    }, rows=tokens.later_faster, needs=[]),
    Check({
        "quality.failed": ("doubt; void from a tenth of the items", "Items have no answer because their requests "
            "failed twice. They count as wrong.",
            "answers-N.jsonl has the server's words. Fix the cause, and run it again with --new."),
    }, quality=quality.failed),
    Check({
        "quality.cut": ("note; doubt above 1 %", "The token limit ended answers.",
            "Raise --max-tokens: an answer that is cut is wrong whatever the model knows."),
    }, quality=quality.cut),
    Check({
        "quality.not_extracted": ("note; doubt above 5 %", "Nothing could be extracted from answers. They count as "
            "wrong.",
            "Read them in answers-N.jsonl. Another form, more examples or a system message shows the model how to "
            "answer."),
    }, quality=quality.not_extracted),
    Check({
        "quality.truncated": ("void", "The server dropped a part of prompts.",
            "The model answered other questions. Start the server with a longer context, or use fewer examples."),
    }, quality=quality.truncated),
    Check({
        "quality.at_chance": ("doubt", "A score is not above that of guessing. Of built-in tasks without choices: 0.",
            "It can't show a loss of quality. Check template and form, or use an easier task."),
    }, quality=quality.at_chance),
    Check({
        "quality.changes_under_load": ("doubt", "Answers at the highest concurrency are better or worse than at the "
            "lowest, beyond chance (p < 0.05, paired by item).",
            "Batching, chunked prefill or prefix caching changes results. Report the score under load, too."),
    }, quality=quality.changes_under_load),
    Check({
        "quality.processes": ("note", "Several starts of the engine answered: the trial was interrupted.",
            "In a study, part of the answers come from another process than the timed one."),
    }, quality=quality.processes),
    Check({
        "plugin.failed": ("note", "A check of a plug-in could not be run.",
            "The run lacks its findings. Update or remove the plug-in; DYNO_PLUGINS=off turns all off."),
    }),
    # Found where runs are read and reports are made.
    Check({
        "study.failed_trials": ("doubt; void if all failed", "Trials of a study have no result.",
            "Run the study again: failed trials are retried."),
        "study.unreadable": ("doubt", "A trial's folder can't be read; the report excludes it.",
            "Measure it again, or delete its folder."),
        "sources.unread": ("note", "`dyno report` could not read a table, block or file with numbers.",
            "The report lacks these figures. `dyno audit` lists them with the reason."),
    }),
)  # fmt: skip


# Findings that every short run has.
SHORT_RUN = frozenset(code for check in CHECKS if check.short_run for code in check.about)


def about(*lists: Iterable[Check]) -> dict[str, FindingGuide]:
    """Return all findings by their codes."""
    return {
        code: words
        for checks in lists
        for check in checks
        for code, words in check.about.items()
    }


def run(checks: Iterable[Check] = CHECKS, **evidence: Any) -> Iterator[Any]:
    """Run all checks for which there is evidence, which is given by its Need. Those of plug-ins come last."""
    for check in checks:
        yield from check.run(evidence)
    if checks is CHECKS:
        yield from _of_plugins(evidence)


def _of_plugins(evidence: Mapping[str, Any]) -> Iterator[Any]:
    """Run the checks of plug-ins. One that fails is a finding that names it, and the others still run."""
    for added in plugins.additions("check"):
        results, why = plugins.guarded(
            added, partial(_results_of, added, evidence), "failed"
        )
        yield from results or ()
        if why:
            yield Finding(
                "plugin.failed", "note", why, about(CHECKS)["plugin.failed"].advice
            )


def _results_of(added: plugins.Addition, evidence: Mapping[str, Any]) -> list[Any]:
    results = list(plugins.load(added).run(evidence))
    if strange := [r for r in results if not isinstance(r, Finding | Objection)]:
        raise TypeError(f"{type(strange[0]).__name__} is not a finding")
    return results


def unchecked(
    results: Sequence[tuple[Row, Document]], peaks_of: PeaksOf, *lists: Iterable[Check]
) -> list[Unchecked]:
    """Return the inputs that results lack, of all checks that apply to them. Each result comes with its document."""
    needs = (need for checks in lists for check in checks for need in check.needs or ())
    return list(inputs.unchecked(results, needs, peaks_of))


def examine(e: Circumstances) -> list[Finding]:
    """Return the findings about a run of dyno's own."""
    if isinstance(e, QualityEvidence):
        return worst_first(run(quality=e))
    evidence: dict[str, Circumstances | Rig] = {
        "run": e,
        "server" if isinstance(e, Evidence) else "offline": e,
    }
    url = e.trial.target.base_url
    # an engine in dyno's own process has no address
    if e.rig is not None and (not url or Url(url).local):
        evidence |= {"rig": e.rig, "host": e}
    return worst_first(run(CHECKS, **evidence))


def objections(two: Two) -> list[Objection]:
    return [o if isinstance(o, Objection) else Objection(o) for o in run(pair=two)]
