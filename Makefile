# From a fresh clone with Python 3.11 to 3.14 and pip: `make demo` plans, `make test` checks everything.
# Everything is installed into .venv; the stamp files in it keep repeated runs quick. All other tools, each with its
# options: .venv/bin/python -m tools.
# Another interpreter: make demo PYTHON=python3.12. Another torch build: make test TORCH='torch==2.13.0+cpu'.

PYTHON ?= python3
TORCH ?= torch==2.13.0
CONSTRAINTS ?= .ci/constraints.txt
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what is imported; most modules of the frameworks never are.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
TOOL := $(BIN)/python -m tools
# deepspeed comes as source only and asks torch how to build itself: no compiled operators, no GPU.
export DS_BUILD_OPS := 0
export DS_ACCELERATOR := cpu
# Python before 3.15 reads text in the locale's encoding, and torch reads files of its own so.
export PYTHONUTF8 := 1
# Images of containers often set it. Tests start some two hundred processes, of which each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
JOB := --model llama2-13b --cluster a100-80gb --gpus 64 --global-batch-size 1024 --seq-length 4096

.DELETE_ON_ERROR:
.PHONY: help demo test lint verify fuzz mutants bench accuracy generate docs dist clean

help:
	@echo 'make demo      plan Llama-2-13B on 64 A100 for Megatron-LM and for DeepSpeed, into demo/'
	@echo 'make test      install the real frameworks (CPU) and run all tests'
	@echo 'make lint      ruff (rules and format), mypy --strict and the budget of lines'
	@echo 'make verify    hold files against the real frameworks (KIND=zoo, real, formats, training, checkpoints, logits or cases; NAMES= for some)'
	@echo 'make fuzz      search for inputs that break a reader (SECONDS=60 for each; FUZZ="bash yaml" for some)'
	@echo 'make mutants   change the code in 300 places, one at a time, and see that tests fail (SAMPLE= SEED= AGAIN=RECORD)'
	@echo 'make bench     measure speed and memory, into benchmarks/results.json and docs/evidence/speed.md (ROWS=plan-*,help)'
	@echo 'make accuracy  fit and score on measured runs (TRUTH=FOLDERS), into docs/evidence/accuracy.md and the intervals'
	@echo 'make generate  write generated pages and data anew (NAMES="rules options" for some)'
	@echo 'make docs      build the pages of docs/ as a site, strictly, into site/'
	@echo 'make dist      build the wheel and the source distribution, check them, and try them offline on each Python here'
	@echo 'make clean     remove what these made'
	@echo '.venv/bin/python -m tools lists all other tools'

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
	  { echo 'error: symconfig needs Python 3.11 to 3.14; name one: make PYTHON=python3.12 ...' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: pyproject.toml $(VENV)/.python
	$(PIP) -e .
	@touch $@

# An extra of pyproject.toml: dev, docs, dist, mutants.
$(VENV)/.%: pyproject.toml $(CONSTRAINTS) $(VENV)/.python
	$(PIP) -c $(CONSTRAINTS) -e '.[$*]'
	@touch $@

# torch by itself first: every later requirement then finds it and pulls no other build.
$(VENV)/.verify: pyproject.toml $(CONSTRAINTS) $(VENV)/.dev
	$(PIP) '$(TORCH)' setuptools wheel ninja py-cpuinfo hatchling editables
	$(PIP) -c $(CONSTRAINTS) --no-build-isolation -e '.[verify,dev,browser]'
	@touch $@

# Megatron-LM's own argument parser, fetched once; where it cannot be had, the tests that need it are skipped.
$(VENV)/.megatron: $(VENV)/.verify
	@if $(BIN)/python -m symconfig.verify.megatron_source; then touch $@; \
	  else echo 'note: no Megatron-LM source; checks against its parser are skipped' >&2; fi

# atheris is built for some Pythons and systems only; where it is not, the inputs that were kept are all that is tried.
$(VENV)/.fuzz: pyproject.toml $(CONSTRAINTS) $(VENV)/.dev
	@$(PIP) --only-binary :all: 'atheris>=3,<4' || true
	@touch $@

demo: $(VENV)/.base
	@$(BIN)/symconfig plan $(JOB) --backend megatron --out demo/megatron --force
	@echo
	@$(BIN)/symconfig plan $(JOB) --backend deepspeed --out demo/deepspeed --force
	@echo
	@for folder in demo/megatron demo/deepspeed; do echo "$$folder/"; ls -1 $$folder | sed 's/^/  /'; done

# Two processes at once, each with whole files: the frameworks' sessions of a file are started once. The longest files
# come first (tests/conftest.py), and not those with most tests.
test: $(VENV)/.megatron
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TOOL) house --budget

# Heavy parsers of formats have environments of their own, in .venv-formats: their packages pin other releases.
KIND ?= zoo
NAMES ?=
verify: $(VENV)/.megatron
	$(TOOL) verify $(KIND) $(NAMES) $(if $(filter formats training,$(KIND)),--torch '$(TORCH)')

SECONDS ?= 60
FUZZ ?=
fuzz: $(VENV)/.fuzz
	$(TOOL) fuzz --seconds $(SECONDS) $(FUZZ)

# Another sample: make mutants SEED=18 SAMPLE=500. Only what the last run did not kill:
# make mutants AGAIN=benchmarks/mutants.json.
SEED ?= 17
SAMPLE ?= 300
PROCESSES ?= 2
# Or of numbers: constants, lower bounds and signs of cost/ and solve/.
MUTATE ?= syntax
AGAIN ?=
mutants: $(VENV)/.verify $(VENV)/.mutants
	$(TOOL) mutants --kind $(MUTATE) --sample $(SAMPLE) --seed $(SEED) --processes $(PROCESSES) \
	  $(if $(AGAIN),--again $(AGAIN)) --record benchmarks/$(if $(filter numbers,$(MUTATE)),mutants_numbers,mutants).json

# Some rows only: make bench ROWS='plan-*,help'. It takes half an hour or more, on an idle machine.
ROWS ?=
bench: $(VENV)/.base
	$(TOOL) bench --record $(if $(ROWS),--rows '$(ROWS)')

TRUTH ?= ../shared/truth ../shared/truth_more ../shared/truth_next
accuracy: $(VENV)/.base
	$(TOOL) accuracy $(TRUTH)

generate: $(VENV)/.verify
	$(TOOL) generate $(NAMES)

docs: $(VENV)/.docs
	$(TOOL) docs

dist: $(VENV)/.dist
	$(BIN)/python .ci/dist.py

clean:
	rm -rf $(VENV) .venv-formats .fuzz .mutants site demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
