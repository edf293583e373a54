# One command for each chore, the same in CI. Needs Python 3.11 or newer, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo picture gallery test test-fast engines test-engines test-tools test-hostile test-pages test-docs test-nightly check format \
        bench bench-engines bench-peers docs docs-reference lock sbom vulnerabilities clean

# Formats of one model, in a minute. `dyno run speculative` runs it without and with a draft.
demo: $(VENV)/.installed
	$(BIN)/dyno demo

# The README's picture: the demo's page, of a machine that does nothing else. Needs Chromium.
picture: demo
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,720 --virtual-time-budget=5000 \
	    --screenshot=$(CURDIR)/pictures/report.png file://$(CURDIR)/runs/demo/report.html

# A page of each of the five reports in published/, with the prices that published/prices.toml assumes.
gallery: $(VENV)/.installed
	for folder in published/*/; do \
	    $(BIN)/dyno report $$folder --prices published/prices.toml --allow-void -o gallery/$$(basename $$folder).html || exit 1; \
	done

# Minutes on two cores: -n 4, as much of a test's time is waiting.
test: $(VENV)/.dev
	$(BIN)/pytest -rfEs -n 4 --dist worksteal --durations 15

# The pure tests, in under 30 s: no process, no socket, no model, no drawn charts.
test-fast: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist worksteal -m "not real"

# vLLM and transformers for the processor, outside the project (DYNO_HOME), once: GB.
engines: $(VENV)/.installed
	$(BIN)/dyno engines install vllm --variant cpu
	$(BIN)/dyno engines install transformers --variant cpu

# Against vLLM, transformers and other people's programs; searches and tuning with real loads; the demo and the shipped
# studies' twins on the embedded engine. Tests that measure a fake engine (the marker `alone`) mostly wait: they come
# first, and no engine starts beside them.
test-engines: $(VENV)/.dev
	$(BIN)/pytest -rfEs -n 3 --dist worksteal -m "engines and alone and not nightly"
	$(BIN)/pytest -rfEs -n 3 --dist loadfile -m "engines and not alone and not nightly" --durations 15

# Models converted and quantized by llama.cpp, llm-compressor and AMD Quark, installed outside the project, once (GB,
# and minutes for a build).
test-tools: $(VENV)/.dev
	$(BIN)/pytest -m tools -rfEs

# Servers that lie, files that bite, kills at any moment, keys that must not show, mutated answers.
test-hostile: $(VENV)/.dev
	$(BIN)/pytest -n 3 --dist worksteal -m "hostile and not nightly" --durations 15

# A report's page in headless Chromium (Debian: apt-get install chromium). Where there is none, -rs says so.
test-pages: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile -m pages -rfEs tests/pages

# Every command in docs/, in the order of its page, against the fake engine or llama.cpp. Searches and gates run alone.
test-docs: $(VENV)/.dev
	$(BIN)/pytest -n 4 --dist worksteal -m docs --durations 8

# What the suites above only sample: all mutated answers, all seeds of a simulation, the variants of what runs once.
test-nightly: $(VENV)/.dev
	$(BIN)/pytest -rfEs -n 2 --dist loadfile -m nightly

check: $(VENV)/.dev
	$(BIN)/ruff format --check src tests bench examples training lock
	$(BIN)/ruff check src tests bench examples training lock
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal -m "house and not engines"

format: $(VENV)/.dev
	$(BIN)/ruff format src tests bench examples training lock
	$(BIN)/ruff check --fix src tests bench examples training lock

# dyno's numbers against the fake engine's own log; peers that `make bench-peers` installed run beside it. Then what a
# chunk costs, beside a bare reader in C. Then how late
# dyno replays a trace, and how it bears size: a study of a thousand trials, a trial of a million tokens. Then how often
# the intervals that it prints contain the truth, and those of its searches.
bench: $(VENV)/.installed
	$(BIN)/python bench/truth.py
	$(BIN)/python bench/speed.py
	$(BIN)/python bench/steps.py
	$(BIN)/python bench/replay.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/coverage.py
	$(BIN)/python bench/find.py

# One small model on llama.cpp, vLLM and transformers, those of them that are here (`dyno engines install`), in one table.
bench-engines: $(VENV)/.installed
	$(BIN)/python bench/engines.py

# The clients of vLLM (Python and Rust), SGLang (Rust), GuideLLM and AIPerf, each in its own environment (several GB).
# Of the wheels of vLLM and SGLang, 321 and 38 MB on aarch64, only the Rust client stays.
bench-peers:
	bench/install-peers.sh

# The documentation as a site, build/site/index.html: opens without a server or a network.
docs: $(VENV)/docs/.installed
	rm -rf build/docs
	mkdir -p build/docs/published
	cp -r README.md METHOD.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md CHANGELOG.md LICENSE docs decisions studies pictures build/docs
	cp published/README.md build/docs/published
	$(VENV)/docs/bin/zensical build --strict --clean
	@echo build/site/index.html

# Tables of commands, keys, findings, metrics and settings in the documentation, made from the code anew.
docs-reference: $(VENV)/.dev
	UPDATE_GOLDEN=1 $(BIN)/pytest -k generated tests/docs/test_docs.py tests/api/test_keys.py

# Packages in the versions and with the checksums of lock/*.txt. pip resolves nothing, and refuses any other file.
LOCKED := $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: --requirement

# The lock files from pyproject.toml, anew: the newest versions that it allows.
lock: $(VENV)/.installed
	$(BIN)/python lock/update.py

# A bill of materials, CycloneDX: build/sbom.json.
sbom: $(VENV)/.dev
	$(BIN)/python lock/sbom.py build/sbom.json

# The locked packages against a local copy of the OSV database: make vulnerabilities OSV=all.zip
vulnerabilities: $(VENV)/.dev
	$(BIN)/python lock/vulnerabilities.py $(OSV)

$(VENV)/.installed: pyproject.toml lock/run.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dyno needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) lock/run.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.installed lock/dev.txt
	$(LOCKED) lock/dev.txt
	touch $@

$(VENV)/docs/.installed: pyproject.toml lock/docs.txt
	$(PYTHON) -m venv $(VENV)/docs
	$(subst $(BIN),$(VENV)/docs/bin,$(LOCKED)) lock/docs.txt
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
