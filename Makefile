# What a person types; .ci/run calls the same targets.  The set-up itself is scripts/install.py.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install dev run test test-fast test-system soak check bench simulate peer lock clean

help:
	@echo "make run      set everything up, then serve on 127.0.0.1:11434"
	@echo "make install  set everything up in .venv (SPECD_ACCEL=cuda|vulkan|rocm|metal|cpu chooses)"
	@echo "make test     the whole suite, and what of the contract it proves"
	@echo "              (INSTRUCTIONS=avx2|x86-64: on llama.cpp kernels built for these)"
	@echo "make test-fast  the tests that start no process, load no native code and compute briefly"
	@echo "make test-system  real systemd, and every fault (as root); renders docs/reliability.md"
	@echo "make soak     an hour's traffic in ten minutes; renders docs/reliability.md"
	@echo "make check    lint, types, architecture, generated files"
	@echo "make bench    the ten targets, measured here; renders docs/benchmarks.md"
	@echo "make simulate the controller over recorded guesses; renders docs/benchmarks/simulator.md"
	@echo "make peer     build the llama-server that specd bench --peer compares with"
	@echo "make lock     pin the versions in .venv for the tests, in .ci/constraints.txt"
	@echo "make clean    remove .venv and caches; the built wheel stays in the user's cache"

install:
	@$(PYTHON) -m scripts.install

dev:
	@$(PYTHON) -m scripts.install --dev

run: install
	@exec $(BIN)/specd serve

# The contract's behaviours are compared with the outcome of the tests that hold them; the tests'
# own status stays.  INSTRUCTIONS=avx2 or x86-64 runs them on llama.cpp kernels built for these.
test: dev
	@$(if $(INSTRUCTIONS),kernels=$$($(BIN)/python -m tools.cpu_instructions $(INSTRUCTIONS)) || exit 1; \
	export LD_LIBRARY_PATH=$$kernels$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH};) \
	$(BIN)/python -m pytest -n 2 --junitxml=build/tests.xml; status=$$?; \
	$(BIN)/python -m tools.conformance --verify build/tests.xml || status=$$((status ? status : 1)); \
	exit $$status

# Without tests that start processes, load native code, simulate or compute for long, or that `make
# check` runs; properties get fewer examples.  Compiled code is kept, which halves the time of the collection.
test-fast: dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --fast

# The tests of `make test` that wreck something, and those that it leaves out.
test-system: dev
	@$(BIN)/python -m pytest -n 2 -m "system or not system" --junitxml=build/system.xml tests/systemd tests/faults; status=$$?; \
	$(BIN)/python -m tools.reliability_page --collect build/system.xml || status=$$((status ? status : 1)); \
	exit $$status

soak: dev
	@$(BIN)/python -m benchmarks.soak --json docs/reliability/soak.json; status=$$?; \
	$(BIN)/python -m tools.reliability_page --write || status=$$((status ? status : 1)); \
	exit $$status

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.settings_docs --check
	$(BIN)/python -m tools.metrics_docs --check
	$(BIN)/python -m tools.benchmarks_page --check
	$(BIN)/python -m tools.conformance --check
	$(BIN)/python -m tools.reliability_page --check
	$(BIN)/python -m pytest -q tests/architecture

bench: dev
	@$(BIN)/python -m benchmarks.targets --report docs
	@$(BIN)/python -m tools.benchmarks_page --write

simulate: dev
	@$(BIN)/python -m benchmarks.simulator.compiled report --write --processes $$(getconf _NPROCESSORS_ONLN)
	@$(BIN)/python -m tools.benchmarks_page --write

peer: dev
	@$(BIN)/python -m benchmarks.peer

# What the tests run with.  To move on: make clean, empty the file, make dev lock test.
lock: dev
	@$(BIN)/python -m pip freeze --exclude-editable --local | grep -v "@ file" >.ci/constraints.txt

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
