# From a fresh clone with Python 3.11 to 3.14 and pip: `make demo` plans, `make test` checks everything.
# Everything is installed into .venv; the stamp files in it keep repeated runs quick.
# Another interpreter: make demo PYTHON=python3.12. Another torch build: make test TORCH='torch==2.13.0+cpu'.

PYTHON ?= python3
TORCH ?= torch==2.13.0
CONSTRAINTS ?= .ci/constraints.txt
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# deepspeed comes as source only and asks torch how to build itself: no compiled operators, no GPU.
export DS_BUILD_OPS := 0
export DS_ACCELERATOR := cpu
# Python before 3.15 reads text in the locale's encoding, and torch reads files of its own so.
export PYTHONUTF8 := 1
JOB := --model llama2-13b --cluster a100-80gb --gpus 64 --global-batch-size 1024 --seq-length 4096

.DELETE_ON_ERROR:
.PHONY: help demo test lint mutants bench bench-check house accuracy priors pipelines partition adaptability trained generation symbols rules checkpoints rates tasks families jobs tutorials systems verify-all verify-real verify-formats verify-training soak megatron-source templates launchers readme options keys flags recipes sessions sweep echarts pages docs rooms new-block new-model new-cluster new-target new-rule dist fuzz clean

help:
	@echo 'make demo        plan Llama-2-13B on 64 A100 for Megatron-LM and for DeepSpeed, into demo/'
	@echo 'make test        install the real frameworks (CPU) and run all tests'
	@echo 'make lint        ruff (rules and format) and mypy --strict'
	@echo 'make mutants     change the code in 300 places, one at a time, and see that tests fail, into benchmarks/mutants.json'
	@echo 'make bench       measure speed and memory, into benchmarks/results.json and docs/speed.md (ROWS=plan-*,help for some)'
	@echo 'make bench-check fail where what make bench recorded is older than the solver'
	@echo 'make verify-all  plan every zoo model on every cluster for every target, and check all of it'
	@echo 'make verify-real plan every zoo model at a realistic size and build its ranks for real, into docs/built.md'
	@echo 'make verify-formats  render a spread of plans in every format for its real parser, into docs/formats.md'
	@echo 'make verify-training  start every format for real on CPU ranks, into docs/training.md (MEGATRON_PATH=FOLDER)'
	@echo 'make soak        plan random jobs, 10,000 plans of them through the real parsers (COUNT= SEED=), into docs/soak.md'
	@echo 'make megatron-source  fetch the Megatron-LM whose parser and modules the checks run, once'
	@echo 'make house       measure the shape of the code: lines by room, circles, what stands in two places'
	@echo 'make accuracy    score the model on measured runs (TRUTH=FOLDER), into docs/accuracy.md, README.md and the intervals'
	@echo 'make priors      distil measured kernels (KERNELS=FOLDER) into what is believed of GPUs before any run of them'
	@echo 'make pipelines   plan every zoo model with uniform and with solved stages, into docs/pipelines.md'
	@echo 'make partition   what the tensor solver finds and what it is held against, into docs/partitions.md'
	@echo 'make adaptability  what a plan loses that is kept when its job changes, into docs/adaptability.md'
	@echo 'make trained     train partitioned modules on CPU ranks against one rank, into docs/trained.md'
	@echo 'make generation  hold steps that a GPU generated in against the model of RL plans, into docs/generation.md'
	@echo 'make rules       every rule of symconfig audit with its example, into docs/rules.md'
	@echo 'make checkpoints what loads where, by rules and by what the frameworks did, into docs/checkpoints.md'
	@echo "make families    the defaults of transformers' config classes, into symconfig; what is read of them, into docs/models.md"
	@echo 'make symbols     the formulas of a plan and where it stays the best, into docs/symbols.md'
	@echo 'make rates       what a job says of its run, and the rates of what it leaves open, into docs/rates.md'
	@echo 'make tasks       what each target is for, into docs/targets.md and docs/rl.md'
	@echo 'make jobs        run the twelve jobs of docs/jobs, and put what they print into their pages'
	@echo 'make tutorials   run the commands of docs/tutorials, and put what they print into them'
	@echo 'make systems     run the commands of docs/systems.md, and put what they print into it'
	@echo 'make templates   every variable of templates, into docs/templates.md'
	@echo 'make launchers   every launcher with its settings, into docs/launchers.md'
	@echo 'make options     options that a plan may use, and what is known of each, into docs/options.md'
	@echo 'make keys        the keys that the installed DeepSpeed reads, into symconfig'
	@echo "make flags       Megatron-LM's options by version (FLAGS=FOLDER of dumps of its parsers), into symconfig"
	@echo 'make recipes     published layouts against the plans of their jobs, into docs/recipes.md (LIMIT=40 for some)'
	@echo 'make sessions    plans made again, as sessions with their real output, into docs/replan.md'
	@echo 'make sweep       the columns of a sweep, into docs/sweep.md'
	@echo 'make echarts     build the charts of pages anew from npm, into symconfig/report/page/assets'
	@echo 'make pages       draw the page of a plan, into docs/pages (needs Chromium)'
	@echo 'make docs        build the pages of docs/ as a site, strictly, into site/'
	@echo 'make rooms       draw what the rooms of the package import, into docs/contributing.md'
	@echo 'make new-block NAME=  write the files of a block, to be filled in; new-model, -cluster, -target, -rule: docs/contributing.md'
	@echo 'make dist        build the wheel and the source distribution, check them, and try them offline on each Python here'
	@echo 'make fuzz        search for inputs that break a reader (SECONDS=60 for each; FUZZ="bash yaml" for some)'
	@echo 'make readme      put fresh output into README.md and docs/ (PAGES=docs/audit.md for some)'
	@echo 'make clean       remove what these made'

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
	  { echo 'error: symconfig needs Python 3.11 to 3.14; name one: make PYTHON=python3.12 ...' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: pyproject.toml $(VENV)/.python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) $(VENV)/.python
	$(PIP) -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@

# torch by itself first: every later requirement then finds it and pulls no other build.
$(VENV)/.verify: pyproject.toml $(CONSTRAINTS) $(VENV)/.dev
	$(PIP) '$(TORCH)'
	$(PIP) setuptools wheel ninja py-cpuinfo hatchling editables
	$(PIP) -c $(CONSTRAINTS) --no-build-isolation -e '.[verify,dev,serve,browser]'
	@touch $@

# Megatron-LM's own argument parser, fetched once; where it cannot be had, the tests that need it are skipped.
$(VENV)/.megatron: $(VENV)/.verify
	@if $(BIN)/python -m symconfig.verify.megatron_source; then touch $@; \
	  else echo 'note: no Megatron-LM source; checks against its parser are skipped' >&2; fi

megatron-source: $(VENV)/.megatron

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

# The tool that changes the code has an environment of its own, with what tests of programs from modules need.
# Another sample: make mutants SEED=18 SAMPLE=500. Only what the last run did not kill:
# make mutants AGAIN=benchmarks/mutants.json.
SEED ?= 17
SAMPLE ?= 300
PROCESSES ?= 2
AGAIN ?=
MUTANTS := .venv-mutants
$(MUTANTS)/.ready: pyproject.toml $(VENV)/.python
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[mutants,module,dev]'
	@touch $@

mutants: $(MUTANTS)/.ready
	$(MUTANTS)/bin/python -m tests.mutants --sample $(SAMPLE) --seed $(SEED) --processes $(PROCESSES) \
	  $(if $(AGAIN),--again $(AGAIN)) --record benchmarks/mutants.json

# Some rows only: make bench ROWS='plan-*,help'. It takes half an hour or more, on an idle machine.
ROWS ?=
bench: $(VENV)/.base
	$(BIN)/python -m benchmarks.bench --record $(if $(ROWS),--rows '$(ROWS)')

bench-check: $(VENV)/.base
	$(BIN)/python -m benchmarks.bench --check

verify-all: $(VENV)/.megatron
	$(BIN)/python -m tests.verify_all

verify-real: $(VENV)/.megatron
	$(BIN)/python -m tests.verify_real

# Hours on a busy machine, one on an idle one: what is refused is printed as it comes.
COUNT ?= 10000
SEED ?= 1
soak: $(VENV)/.megatron
	$(BIN)/python -m tests.soak --count $(COUNT) --seed $(SEED) --record

# Heavy parsers have environments of their own, in .venv-formats. Some formats only: make verify-formats FORMATS='a b'.
FORMATS ?=
verify-formats: $(VENV)/.megatron
	$(BIN)/python -m tests.verify_formats $(FORMATS) --torch '$(TORCH)'

# Real starts on two CPU ranks, of formats of Megatron-LM with its checkout. Some only: TRAINING='mixtral llamafactory'.
TRAINING ?=
verify-training: $(VENV)/.megatron
	$(BIN)/python -m tests.verify_training $(TRAINING) --torch '$(TORCH)'

house: $(VENV)/.base
	$(BIN)/python -m benchmarks.house

TRUTH ?= ../shared/truth ../shared/truth_more
KERNELS ?= ../shared/kernels
accuracy: $(VENV)/.base
	$(BIN)/python docs/accuracy.py $(TRUTH)

pipelines adaptability generation rules checkpoints symbols rates tasks templates launchers options rooms sweep: $(VENV)/.base
	$(BIN)/python docs/$@.py

priors: $(VENV)/.base
	$(BIN)/python docs/priors.py $(KERNELS)

partition: $(VENV)/.dev
	$(BIN)/python docs/partition.py

trained: $(VENV)/.verify
	$(BIN)/python docs/trained.py

families: $(VENV)/.verify
	$(BIN)/python docs/families.py
	$(BIN)/python docs/modules.py
	$(BIN)/python docs/models.py

jobs: $(VENV)/.base
	$(BIN)/python docs/jobs.py

tutorials: $(VENV)/.base
	$(BIN)/python docs/jobs.py $(patsubst docs/%,../%,$(wildcard docs/tutorials/*.md))

systems: $(VENV)/.base
	$(BIN)/python docs/jobs.py ../systems.md

keys: $(VENV)/.verify
	$(BIN)/python docs/deepspeed_keys.py

FLAGS ?= ../shared/megatron_flags
flags: $(VENV)/.base
	$(BIN)/python docs/flags.py $(FLAGS)

LIMIT ?=
recipes: $(VENV)/.base
	$(BIN)/python docs/recipes.py $(if $(LIMIT),--limit $(LIMIT))

sessions: $(VENV)/.base
	$(BIN)/python docs/jobs.py ../replan.md

# What builds the site has an environment of its own: the planner needs none of it.
DOCS := .venv-docs
$(DOCS)/.ready: pyproject.toml $(VENV)/.python
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet

# An addition, to be filled in: make new-model NAME=mine CONFIG=config.json, make new-rule NAME=my-rule IN=megatron_training.
IN ?=
CONFIG ?=
new-block new-model new-cluster new-target new-rule: new-%: $(VENV)/.dev
	@$(BIN)/python docs/new.py $* '$(NAME)' $(if $(IN),--in '$(IN)') $(if $(CONFIG),--config '$(CONFIG)')

readme: $(VENV)/.base
	$(BIN)/python docs/jobs.py $(addprefix ../../,$(or $(PAGES),$(shell grep -l '^<!-- output' README.md docs/*.md)))

# The charts of pages: only what they use of Apache ECharts, in one file, with its licence. Needs npm; the version is in
# docs/echarts/package.json.
echarts:
	docs/echarts/build.sh

pages: $(VENV)/.verify
	$(BIN)/python docs/pages.py

# What builds and checks packages has an environment of its own.
DIST := .venv-dist
$(DIST)/.ready: pyproject.toml $(CONSTRAINTS) $(VENV)/.python
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) build twine
	@touch $@

dist: $(DIST)/.ready
	$(DIST)/bin/python .ci/dist.py

# atheris is built for some Pythons and systems only; where it is not, the inputs that were kept are all that is tried.
FUZZED := .venv-fuzz
SECONDS ?= 60
FUZZ ?=
$(FUZZED)/.ready: pyproject.toml $(VENV)/.python
	$(PYTHON) -m venv $(FUZZED)
	$(FUZZED)/bin/python -m pip install --quiet --disable-pip-version-check -e . hypothesis
	@$(FUZZED)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: 'atheris>=3,<4' || true
	@touch $@

fuzz: $(FUZZED)/.ready
	$(FUZZED)/bin/python -m tests.fuzz.run --seconds $(SECONDS) $(FUZZ)

clean:
	rm -rf $(VENV) $(DIST) $(FUZZED) .fuzz .venv-formats $(MUTANTS) $(DOCS) site .mutants demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
