#!/bin/sh
# Makes the figures here again from the files of the five reports, in the folder $DYNO_REPORTS. `dyno` is $DYNO, or the one
# on the path. Settings that are in the report but not in a data file (the engine behind a table, the accelerators, the
# prompt lengths) are added with --set and marked as such; the figures are the files'.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "${DYNO_REPORTS:?the folder of the reports}" # files are known by the names by which they are read
dyno=${DYNO:-dyno}

keep() { # FOLDER FILE [--set …]
    folder=$1
    shift
    $dyno import --no-text -o "$here/$folder" "$@"
}

# A report without results of its own: its commands and tables. That there are none is an error to dyno.
words() { keep "$@" 2>/dev/null || [ $? = 1 ]; }

# The number of requests of each result where none failed: they were sent at once, and are the load.
sent_csv() { awk -F, 'NR > 1 { printf "--set %d:num_prompts=%d ", NR, $1 }' "$1"; }
sent_blocks() { awk '/^Successful requests:/ { printf "--set %d:num_prompts=%d ", NR, $3 }' "$1"; }
# The length of the prompt of each result that has one request.
prompts_csv() { awk -F, 'NR > 1 { printf "--set %d:input_len=%d ", NR, $3 }' "$1"; }
prompts_blocks() { awk -v from="$2" 'NR > from && /^Total input tokens:/ { printf "--set %d:input_len=%d ", NR, $4 }' "$1"; }

# ---- Hot Aisle: Llama-3.1-70B on MI300X ----
# The first two servers have the model's own type; the blocks in FP8 have no commands, all of the same 220,902 tokens.
keep mi300x-llama-70b-vllm mi300x-llama70b-vllm-log.md \
    --set engine=vllm --set accelerator=MI300X --set model=meta-llama/Llama-3.1-70B-Instruct --set dataset=sharegpt \
    --set 1-166:quantization=BF16 --set 1-195:accelerators=4 --set 196-225:accelerators=2 --set 226-268:accelerators=1

# ---- AMD ROCm: FP8 models on MI300X ----
keep mi300x-vllm-fp8-procedure rocm-vllm-fp8-benchmarks.md \
    --set engine=vllm --set accelerator=MI300X --set accelerators=8

# ---- lhl: vLLM against llama.cpp on a Ryzen AI Max+ 395 ----
keep strix-halo-vllm-llamacpp strix-halo-vllm-vs-llamacpp.md \
    --set "accelerator=Radeon 8060S (Strix Halo)" --set accelerators=1 \
    --set 66-530:dataset=sharegpt --set 66-530:num_prompts=64 --set 113-124:concurrency=16 \
    --set 66-90:engine=vllm --set 130-300:engine=vllm --set 530-624:engine=llama.cpp \
    --set 66-78:quantization=FP16 --set 83:quantization=FP16 --set 84:quantization=W8A8 --set 85:quantization=GPTQ \
    --set 115:quantization=W8A8 --set 116:quantization=Q8_0 --set 123:quantization=GPTQ --set 124:quantization=Q4_K_M \
    --set 130-235:quantization=FP16 --set 350:quantization=FP16

# ---- dstack: 8×H100 against 8×MI300X, Llama-3.1-405B FP8 ----
meta=meta-llama/Llama-3.1-405B-FP8
amd=amd/Llama-3.1-405B-Instruct-FP8-KV
h100=h100-mi300x-llama-405b
words $h100 8xh100-vs-8xmi300x-llama405b.md
keep $h100 data/h100-vs-mi300x.qps_comparison.csv \
    --set engine=vllm --set quantization=FP8 --set dataset=sharegpt --set 2-7:model=$meta --set 8-16:model=$amd \
    --set 2-10:tensor_parallel=8 --set 11-16:tensor_parallel=4 --set 14-16:replicas=2
keep $h100 data/h100-vs-mi300x.throughput_comparsion.csv \
    --set engine=vllm --set quantization=FP8 --set 2-37:model=$meta --set 38-94:model=$amd \
    --set 2-56:tensor_parallel=8 --set 57-94:tensor_parallel=4 --set 76-94:replicas=2
curve="--set engine=vllm --set quantization=FP8"
for range in 2-15 37-50 72-79; do curve="$curve --set $range:model=$meta"; done
for range in 16-36 51-71 80-94; do curve="$curve --set $range:model=$amd"; done
for range in 2-22 37-57 72-84; do curve="$curve --set $range:tensor_parallel=8"; done
for range in 23-36 58-71 85-94; do curve="$curve --set $range:tensor_parallel=4"; done
for range in 30-36 65-71 90-94; do curve="$curve --set $range:replicas=2"; done
keep $h100 data/h100-vs-mi300x.throughput_latency_curve.csv $curve
# Three files behind the rows of 8×H100: 16 requests/s, and 64 requests of 2048 + 2048 tokens.
own="--set engine=vllm --set quantization=FP8 --set accelerator=H100 --set accelerators=8 --set tensor_parallel=8"
offline="--set model=$meta --set input_len=2048 --set output_len=2048 --set batch_size=64"
keep $h100 data/h100-vs-mi300x.vllm-serve-16qps.json $own --set dataset=sharegpt
keep $h100 data/h100-vs-mi300x.vllm-latency-2048-2048-64.json $own $offline
keep $h100 data/h100-vs-mi300x.vllm-throughput-2048-2048-64.json $own $offline

# ---- dstack: TGI against vLLM on 8×MI300X ----
both=mi300x-llama-405b-tgi-vllm
words $both mi300x-llama405b-tgi-vs-vllm.md
for engine in tgi vllm; do
    it="--set engine=$engine --set model=meta-llama/Llama-3.1-405B-Instruct --set accelerator=MI300X --set accelerators=8
        --set tensor_parallel=8 --set dataset=sonnet"
    for name in short:80 long:10000; do
        file=data/tgi-vs-vllm.result_${engine}_${name%:*}.csv
        keep $both $file $it --set input_len=${name#*:} --set rate=inf $(sent_csv $file)
    done
    file=data/tgi-vs-vllm.result_${engine}_single_prompt.csv
    keep $both $file $it --set rate=inf $(sent_csv $file) $(prompts_csv $file)
    # 300 requests at 1 each second, 600 at 2, … for five minutes. TGI has no more than three, and answered 198 of the last.
    rates="--set 2:rate=1 --set 2:num_prompts=300 --set 3:rate=2 --set 3:num_prompts=600 --set 4:rate=3 --set 4:num_prompts=900"
    [ $engine = tgi ] || rates="$rates --set 5:rate=4 --set 5:num_prompts=1200 --set 6:rate=5 --set 6:num_prompts=1500"
    keep $both data/tgi-vs-vllm.result_${engine}_QPS_high.csv $it --set input_len=1000 $rates
    file=data/tgi-vs-vllm.${engine}_raw.txt
    keep $both $file $it --set rate=inf $(sent_blocks $file) --set 1-266:input_len=80 --set 269-424:input_len=10000 \
        $(prompts_blocks $file 424)
done
