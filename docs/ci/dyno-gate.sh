#!/usr/bin/env bash
# Measure a server and compare it with a baseline.
#
#   dyno-gate.sh URL BASELINE [GATE …]
#
# BASELINE is a folder of runs. If it doesn't exist, this measurement becomes the baseline.
# Variables: REPEATS, CONCURRENCY, PROMPTS, INPUT_LEN, OUTPUT_LEN; SEED of the prompts, by default another one each time,
# since a server that still runs has the last ones in its cache; DYNO_ARGS, more flags of `dyno bench serve`.
# Exit codes: 0 all gates hold, 3 a gate is broken or a result is void, 4 a gate can't be decided, 1 and 2 errors.
set -euo pipefail

url=${1:?usage: dyno-gate.sh URL BASELINE [GATE …]} baseline=${2:?usage: dyno-gate.sh URL BASELINE [GATE …]}
shift 2
runs=head-runs
[ -d "$baseline" ] || runs=$baseline
rm -rf "$runs"

dyno bench serve --base-url "$url" --ready-check-timeout-sec 300 --runs "$runs" --repeats "${REPEATS:-3}" \
    --max-concurrency "${CONCURRENCY:-8}" --num-prompts "${PROMPTS:-200}" --num-warmups 8 \
    --random-input-len "${INPUT_LEN:-256}" --random-output-len "${OUTPUT_LEN:-64}" \
    --seed "${SEED:-$RANDOM}" ${DYNO_ARGS:-}

if [ "$runs" = "$baseline" ]; then
    echo "$baseline is the baseline now."
else
    dyno report "$baseline" "$runs" -o dyno-report.html
    dyno compare "$baseline" "$runs" ${1+--gate "$@"}
fi
