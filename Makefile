# Two commands: `make demo` and `make test`. They install all that they need into .venv.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEEL := target/wheels/installed
SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find src python -type f -not -path '*/__pycache__/*')

# maturin sets these for its builds; equal values everywhere keep everything above pyo3-ffi from being rebuilt.
export PYO3_PYTHON := $(abspath $(BIN)/python)
export PYO3_BUILD_EXTENSION_MODULE := 1
# A user's settings must not change what is tested.
unexport PYTHONPATH

.PHONY: demo test rust python lint bench vendor clean help

help: ## what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(WHEEL) ## build, scan a small example archive, print its findings
	@rm -rf target/demo
	@$(BIN)/gradscan demo target/demo
	@$(BIN)/gradscan scan target/demo --fail-on never

test: lint rust python ## everything that CI runs
	@echo "make test: all passed"

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group runtime --group test
	@touch $@

# The wheel that `pip install .` would build: demo, pytest and benchmarks use the same one.
$(WHEEL): $(VENV)/ready $(SOURCES)
	$(BIN)/maturin build --release --locked --quiet --interpreter $(BIN)/python --out target/wheels
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
	  "$$(ls -t target/wheels/gradscan-*.whl | head -n 1)"
	@touch $@

lint: $(VENV)/ready ## formatting, clippy with and without Python, ruff
	cargo fmt --check
	cargo clippy --locked --quiet --no-default-features -- -D warnings
	cargo clippy --locked --quiet --all-features --all-targets -- -D warnings
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

rust: ## cargo tests, without Python
	cargo test --locked --quiet

python: $(WHEEL) ## stub test, type check, pytest, and a smoke run of the benchmarks
	$(BIN)/python -m mypy.stubtest gradscan._core
	$(BIN)/mypy --strict python/gradscan tests/python benches
	$(BIN)/python -m pytest -q
	$(BIN)/python benches/compare.py --quick

bench: $(WHEEL) ## measure against the peers, side by side
	$(BIN)/python benches/compare.py

vendor: ## write the trackers' fixtures again, with the trackers themselves
	$(PYTHON) tests/data/trackers.py

clean: ## remove everything that was built
	rm -rf target $(VENV)
