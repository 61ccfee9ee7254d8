# `make` alone lists the targets. Every target sets .venv up first if it has to.

PYTHON ?= python3
VENV ?= .venv

# PYTHON_ENV=/path/to/python uses that interpreter and whatever is installed beside it, and
# sets nothing up: for machines that have torch already and no network.
ifdef PYTHON_ENV
  PY := $(PYTHON_ENV)
  READY :=
  DOCS_READY :=
  CLANG_FORMAT ?= clang-format
  export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
else
  PY := $(VENV)/bin/python
  READY := $(VENV)/.ready
  DOCS_READY := $(VENV)/.docs-ready
  CLANG_FORMAT ?= $(VENV)/bin/clang-format
  # Two: the suite compiles kernels, and torch runs threads of its own.
  PYTEST_ARGS ?= -n 2 --dist worksteal
endif
# Where there is an NVIDIA GPU, what compiles its kernels belongs to the environment.
EXTRAS ?= dev$(if $(shell command -v nvidia-smi),$(comma)cuda)
comma := ,

# Tests start dozens of Pythons, and pytest rewrites every test file: kept, that is done once.
unexport PYTHONDONTWRITEBYTECODE

PYTHON_SOURCES = $(wildcard src tests examples notebooks benchmarks .ci *.py)
CPP_SOURCES = $(shell find src examples \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \))

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-every lint format bench docs clean $(VENV)

help:
	@echo 'make demo     run simple_demo.py on this machine, write report.html'
	@echo 'make test     every op, every promise: nine or ten minutes on 2 cores  (PYTEST_ARGS="-k gelu -x")'
	@echo 'make test-all  with every two parameters together, and long tests: three quarters of an hour more'
	@echo 'make test-every  every combination: hours'
	@echo 'make lint     ruff, mypy, clang-format; changes nothing'
	@echo 'make format   let ruff and clang-format rewrite the sources'
	@echo 'make bench    eager, torch.compile and fused side by side  (ARGS="--suite seeds")'
	@echo 'make docs     build the docs site into site/'
	@echo 'make .venv    only set up the environment'
	@echo 'make clean    remove .venv, caches and build outputs'
	@echo
	@echo 'Each target first makes .venv with the versions of constraints.txt. Variables:'
	@echo '  PYTHON=python3.12            the interpreter that .venv is made from'
	@echo '  VENV=dir                     another place for the environment'
	@echo '  EXTRAS=dev,cuda              what of pyproject.toml goes into it'
	@echo '  PYTHON_ENV=/path/to/python   use this interpreter as it is: nothing is installed, so'
	@echo '                               it needs torch, and pytest and so on for make test'
	@echo "Which torch pip takes (CPU or CUDA) follows pip's own settings, such as PIP_INDEX_URL."

$(VENV): $(READY)

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[$(EXTRAS)]"
	# A minute or so, once: whoever runs the demo or the tests then does not wait for it.
	$(VENV)/bin/python -c 'from megafuse.runtime import loader; loader.load()'
	@touch $@

$(VENV)/.docs-ready: $(VENV)/.ready
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	@touch $@

demo: $(READY)
	$(PY) simple_demo.py --html report.html $(ARGS)

test: $(READY)
	$(PY) -m pytest -m quick $(PYTEST_ARGS)

test-all: $(READY)
	$(PY) -m pytest -m "(quick or thorough) and not large" $(PYTEST_ARGS)

test-every: $(READY)
	$(PY) -m pytest $(PYTEST_ARGS)

lint: $(READY)
	$(PY) -m ruff check $(PYTHON_SOURCES)
	$(PY) -m ruff format --check $(PYTHON_SOURCES)
	$(PY) -m mypy
	@echo '$(CLANG_FORMAT) --dry-run -Werror: $(words $(CPP_SOURCES)) files'
	@$(CLANG_FORMAT) --dry-run -Werror $(CPP_SOURCES)

format: $(READY)
	$(PY) -m ruff check --fix $(PYTHON_SOURCES)
	$(PY) -m ruff format $(PYTHON_SOURCES)
	$(CLANG_FORMAT) -i $(CPP_SOURCES)

bench: $(READY)
	$(PY) -m megafuse bench $(ARGS)

docs: $(DOCS_READY)
	$(PY) -m mkdocs build --strict --quiet
	@echo 'site/index.html; to search in it: $(PY) -m http.server -d site'

clean:
	rm -rf .venv .venv-nvrtc12 .venv-nvrtc13 build dist site
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(wildcard src tests examples benchmarks .ci) -name __pycache__ -type d -prune -exec rm -rf {} +
