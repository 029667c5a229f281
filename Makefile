# Everything runs inside .venv, which the first target that needs it makes. Needs python3.11, git, make.
PYTHON ?= python3.11
VENV ?= .venv
JOBS ?= 2
DEMO ?= demo

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help venv demo test test-all lint check bench accuracy docs site clean

help:
	@echo "make demo      compile the example models, simulate them, report and trace in $(DEMO)/"
	@echo "make test      the fast tests"
	@echo "make test-all  all tests, the slow ones too"
	@echo "make lint      lint, types and import contracts"
	@echo "make check     lint, types, import contracts and the fast tests"
	@echo "make bench     seconds and memory to compile and simulate two real models"
	@echo "make accuracy  how far the binaries of ten real models are from onnxruntime in float32"
	@echo "make docs      write anew the parts of the documents that programs print"
	@echo "make site      the documents as a site, in site/"
	@echo "make clean     remove what the other targets made, .venv too"

venv: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) --version >/dev/null 2>&1 || { \
	  echo "make: $(PYTHON) was not found; install Python 3.11 or say make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

demo: $(READY)
	$(BIN)/python examples/make_models.py $(DEMO)
	@for model in cnn encoder; do \
	  set -e; echo; \
	  $(BIN)/spyrec compile $(DEMO)/$$model.onnx -o $(DEMO)/$$model.spx; \
	  $(BIN)/spyrec simulate $(DEMO)/$$model.spx --outputs $(DEMO)/$$model.npz \
	    --report $(DEMO)/$$model.report.json --trace $(DEMO)/$$model.trace.json; \
	done
	@echo; echo "to go on with the spyrec command:  . $(VENV)/bin/activate"

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS)

test-all: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) -m "slow or not slow"

lint: $(READY)
	$(BIN)/ruff check ir sim passes spyrec tests examples benchmarks
	$(BIN)/mypy -p spyrec
	$(BIN)/lint-imports

check: lint test

bench: $(READY)
	$(BIN)/python -m benchmarks.compile_simulate

accuracy: $(READY)
	$(BIN)/python -m benchmarks.accuracy

site: $(READY)
	@$(BIN)/python -c "import mkdocs_material, mkdocstrings" 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --editable '.[test,docs]'
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet

docs: $(READY)
	$(BIN)/python -m tests.generated_docs

clean:
	rm -rf $(VENV) $(DEMO) site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
