# Two commands are the whole set-up, each alone, on a machine with Python 3.11+, a C++ compiler and make:
#   make serve   builds .venv (the serving install alone), fetches the default model, serves it
#   make test    builds .venv-test (with all that the tests need) and runs the tests
PYTHON ?= python3
ARGS ?=
CONSTRAINTS := $(CURDIR)/constraints.txt
SOURCES := pyproject.toml constraints.txt $(shell find src native -type f -not -name '*.so' -not -path '*/__pycache__/*')
PIP_INSTALL = PIP_CONSTRAINT=$(CONSTRAINTS) PIP_DISABLE_PIP_VERSION_CHECK=1
# Torch, NumPy and the engine each start their own threads; tests run in two processes on two cores.
TEST_ENV = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

.PHONY: serve setup test test-clients bars fuzz check format clean

serve: setup
	.venv/bin/octavo serve $(ARGS)

setup: .venv/.installed
	.venv/bin/python -m octavo.models.store

test: .venv-test/.installed
	.venv-test/bin/python -m octavo.models.store
	$(TEST_ENV) .venv-test/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

# Other people's clients, unmodified, in environments of their own, against a real server: docs/clients.md.
test-clients: .venv-test/.installed
	.venv-test/bin/python -m tests.clients.run $(ARGS)

# Each row of what must be seen, as a named run that leaves bars/NAME.json; finished ones are not repeated.
# make bars ARGS="soak batching" runs some, ARGS="--again" all anew. The row gemma-3-270m fetches a model under Gemma's
# Terms of Use: it runs where they are accepted by name, make bars OCTAVO_ACCEPT_TERMS=gemma.
bars: .venv-test/.installed
	.venv-test/bin/python -m benchmarks.bars $(ARGS)

# Fuzzers, ten minutes each: detokeniser, stops, sse, bodies, models. make fuzz ARGS="stops --seconds 60" runs one for a minute.
fuzz: .venv-test/.installed
	.venv-test/bin/python -m benchmarks.fuzzers $(ARGS)

check: .venv-test/.installed
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy

format: .venv-test/.installed
	.venv-test/bin/ruff check --fix .
	.venv-test/bin/ruff format .

.venv/.installed: $(SOURCES)
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) .venv/bin/python -m pip install --quiet .
	touch $@

.venv-test/.installed: $(SOURCES)
	test -x .venv-test/bin/python || $(PYTHON) -m venv .venv-test
	$(PIP_INSTALL) .venv-test/bin/python -m pip install --quiet '.[test]'
	touch $@

clean:
	rm -rf .venv .venv-test build bars
