# `make train` and `make test` set up .venv themselves; PYTHON is what makes it.
PYTHON ?= python3
BIN := .venv/bin
GIN ?= gin/quickstart.gin
WORKDIR ?= runs/$(notdir $(basename $(GIN)))

.PHONY: train compare test test-as-for-users test-computing test-waiting test-full test-seqio test-torch faults mutations evals-smoke lint types bench bench-step bench-data bench-tpu bench-evals bench-gpu plans records docs docs-serve clean

# A program that was compiled once is kept, so that the next start takes seconds.
train: export JAX_COMPILATION_CACHE_DIR ?= $(HOME)/.cache/hyla_lm/programs
train: .venv/core
	$(BIN)/hyla-lm train --gin_file=$(GIN) --workdir=$(WORKDIR)

compare: .venv/core
	$(MAKE) train GIN=gin/quickstart.gin
	$(MAKE) train GIN=gin/quickstart_softmax.gin
	$(MAKE) train GIN=gin/quickstart_linear.gin
	@echo "curves side by side: $(BIN)/tensorboard --logdir runs"

# A process a core, up to four of some GB each. Tests of a file stay together, since they share what they made.
# Tests of what runs on CPU as it is defined compile as for users, all others in a third of the time.
# Tests that wait more than they compute run beside those, in a process that shares their cores.
AS_FOR_USERS := tests/tools/plan tests/test_benchmarks.py tests/test_quickstart.py tests/run/test_same_bits.py \
	tests/attention/test_attention.py tests/attention/test_prefixes.py tests/attention/test_reference.py
WAITING := tests/run/test_watchdog.py tests/faults/test_ways_out.py \
	tests/faults/test_workers_end.py tests/parallel/test_processes.py tests/tpu
OTHERS := $(addprefix --ignore=,$(AS_FOR_USERS) $(WAITING))
QUICKLY := JAX_DISABLE_MOST_OPTIMIZATIONS=1 JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0 \
	XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
PYTEST := $(BIN)/pytest --numprocesses=logical --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
# Python keeps what it compiles, even where it is asked not to: many processes import the same modules.
test test-full: export PYTHONDONTWRITEBYTECODE =
test: .venv/dev
	$(MAKE) --jobs=2 lint test-as-for-users
	$(MAKE) --jobs=2 test-computing test-waiting

test-as-for-users:
	$(PYTEST) $(AS_FOR_USERS)

test-computing:
	$(QUICKLY) $(PYTEST) $(OTHERS)

test-waiting:
	$(QUICKLY) $(BIN)/pytest $(WAITING)

test-full: .venv/full
	$(PYTEST) tests/golden
	$(PYTEST) -m full $(AS_FOR_USERS)
	$(QUICKLY) $(PYTEST) -m full $(addprefix --ignore=,$(AS_FOR_USERS))

test-seqio: .venv-seqio/ready
	.venv-seqio/bin/pytest -m seqio

test-torch: .venv/torch
	$(BIN)/pytest -m torch

# Kills KILLS processes at random moments, injects STORAGE_ERRORS and fuzzes long: docs/faults.md.
faults: export FAULTS ?= runs/faults
faults: export KILLS ?= 200
faults: export STORAGE_ERRORS ?= 200
faults: export SEED ?= 0
faults: export HYPOTHESIS_PROFILE = faults
faults: .venv/dev
	$(BIN)/pytest -s -m "not full and not seqio and not torch" tests/faults

# Each fault of tests/mutations.toml, alone in a copy of the tree, must fail its test. ONLY is a pattern of rows.
mutations: .venv/dev
	$(BIN)/python -m tests.mutations --only='$(ONLY)'

# All evaluation tasks, from small runs to a report with figures, which says only that all of it works.
EVALS_SMOKE ?= runs/evals_smoke
SMALL := --variants=softmax,hyla --seeds=0,1 --steps=20 --workdir=$(EVALS_SMOKE) \
	--gin.ModelConfig.num_layers=1 --gin.ModelConfig.model_dim=16 --gin.ModelConfig.mlp_dim=16 \
	--gin.TrainConfig.batch_size=16 --gin.LogConfig.every=10 --gin.OptimizerConfig.warmup_steps=5
evals-smoke: export JAX_DISABLE_MOST_OPTIMIZATIONS = 1
evals-smoke: export XLA_FLAGS = --xla_cpu_use_fusion_emitters=false
evals-smoke: .venv/dev
	rm -rf $(EVALS_SMOKE)
	$(BIN)/hyla-lm evals fuzzy_logic $(SMALL) --preset=strict --gin.FuzzyLogic.evaluation_examples=64
	$(BIN)/hyla-lm evals sraven $(SMALL) --preset=strict --gin.Sraven.evaluation_examples=64
	$(BIN)/hyla-lm evals match3 $(SMALL) --gin.Match3.evaluation_examples=64
	$(BIN)/hyla-lm evals hyperteacher $(SMALL) --gin.Hyperteacher.evaluation_examples=64
	$(BIN)/hyla-lm evals interventions $(EVALS_SMOKE)/fuzzy_logic/*/*/*/*/seed? --out=$(EVALS_SMOKE)/interventions --examples=128
	cat $(EVALS_SMOKE)/report.md $(EVALS_SMOKE)/interventions/report.md

lint: types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/dev
	mkdir -p .venv/typed/hyla_lm
	ln -sfn $(addprefix $(CURDIR)/,$(wildcard hyla_lm/*) data evals tpu) .venv/typed/hyla_lm/
	cd .venv/typed && ../bin/mypy --config-file ../../pyproject.toml

bench: .venv/dev
	$(BIN)/python tests/benchmarks/bench_attention.py

bench-step: .venv/dev
	$(BIN)/python tests/benchmarks/bench_step.py

bench-data: .venv/dev
	$(BIN)/python tests/benchmarks/bench_data.py $(TOKENIZER)

bench-tpu: .venv/full
	$(BIN)/python tests/benchmarks/bench_tpu.py $(LENGTHS)

bench-evals: .venv/dev
	$(BIN)/python tests/benchmarks/bench_evals.py

bench-gpu: .venv/gpu
	$(BIN)/python tests/benchmarks/bench_gpu.py $(GINS)

plans: .venv/full
	$(BIN)/python docs/make_plans.py $(PLANS)

# Corpus, runs without a result, and the pages made of results: hours of one core when docs/results/records is empty.
records: .venv/dev
	$(BIN)/python -m docs.studies.records_corpus --output=runs/records
	$(BIN)/python -m docs.studies.records --rows=runs/records/rows --workdir=runs/records/runs
	$(BIN)/python -m docs.studies.records_page
	$(BIN)/python -m docs.studies.experiments_page

docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: .venv/dev
	$(BIN)/mkdocs build --strict

docs-serve: .venv/dev
	$(BIN)/mkdocs serve --strict

clean:
	rm -rf .venv .venv-seqio

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/dev: .venv/core
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

.venv/full: .venv/dev
	$(BIN)/pip install --quiet --editable '.[dev,tpu]'
	touch $@

.venv/gpu: .venv/dev
	$(BIN)/pip install --quiet --editable '.[dev,gpu]'
	touch $@

# The PyTorch that tests/golden/torch was made with.
.venv/torch: .venv/dev
	$(BIN)/pip install --quiet --editable '.[dev,torch]' 'torch==2.13.*'
	touch $@

.venv-seqio/ready: pyproject.toml
	$(PYTHON) -m venv .venv-seqio
	.venv-seqio/bin/pip install --quiet --editable '.[dev,seqio]'
	touch $@
