PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
MATRIX ?=
MAX_JOBS ?= 2
# Tests on all cores, threads of which do not wait by spinning; one test alone is plain `pytest`.
PYTEST   = OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n auto --maxprocesses=4
# Of `make fuzz` and `make kill` (tests/attack, docs/explanation/threats.md).
SECONDS ?= 600
ROUNDS  ?= 200
SEED    ?= 1
JOBS    ?= 1
KIND    ?=
VERB    ?=
REPLAY  ?=
# Of `make sanitize` (docs/reference/cpu.md).
MINUTES ?= 60
ATTACK   = PYTHONPATH=.:tests:tests/fixtures OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	$(BIN)/python -m

.PHONY: demo test test-more test-all fuzz kill sanitize lint check docs gpu minkowski clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py $(MATRIX)

# Tiers of tests: tests/conftest.py. `check` runs the first, `test` that and each seam.
test: $(VENV)/.installed-dev
	$(PYTEST) --tier test

# What `test` leaves out, less what is marked slow.
test-more: $(VENV)/.installed-dev
	$(PYTEST) --tier more

test-all: $(VENV)/.installed-dev
	$(PYTEST) -m ""

# Bad input for SECONDS (or HOURS) in all: one KIND or all; REPLAY=FILE feeds a kept one again.
fuzz: $(VENV)/.installed-dev
	$(ATTACK) attack.fuzz --seconds $(if $(HOURS),$$(($(HOURS) * 3600)),$(SECONDS)) --seed $(SEED) \
		--jobs $(JOBS) $(addprefix --kind ,$(KIND)) $(addprefix --replay ,$(REPLAY)) \
		--out build/attack --json build/attack.json

# ROUNDS of kills, torn writes and full disks; folders with links, pipes and devices; full disks.
kill: $(VENV)/.installed-dev
	$(ATTACK) attack.kill --rounds $(ROUNDS) --seed $(SEED) $(addprefix --verb ,$(VERB)) \
		--json build/kill.json
	$(ATTACK) attack.hostile
	$(ATTACK) attack.full --system tmpfs
	$(ATTACK) attack.full --system ext4

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint
	$(PYTEST) --tier unit

# The pages of docs/ with the generated reference, into build/site.
docs: $(VENV)/.installed-dev
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Generated C under gcc's sanitizers, for MINUTES or until Ctrl-C (docs/reference/cpu.md).
sanitize: $(VENV)/.installed-dev
	PYTHONPATH=. $(BIN)/python tests/fixtures/sanitize_sweep.py --minutes $(MINUTES) --seed $(SEED)

# The CUDA kernels on this machine's GPU, in at most four minutes (benchmarks/gpu/README.md); OPTIONS
# as --matrices FOLDER. `make gpu VENV=` installs nothing and takes PYTHON as it is.
gpu: $(if $(VENV),$(VENV)/.installed-gpu)
	$(if $(VENV),$(BIN)/python,$(PYTHON)) benchmarks/gpu/check.py $(OPTIONS)

# The second backend of the learned part (docs/howto/train.md). Nothing else needs it.
minkowski: $(VENV)/.minkowski

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[dev,docs,graphs,learn,plot,serve]'
	touch $@

$(VENV)/.installed-gpu: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cuda]'
	touch $@

# No cache for the wheel: a cached one may have been built against another torch.
$(VENV)/.minkowski: | $(VENV)/.installed
	@command -v g++ >/dev/null || { echo "needs a C++ compiler: apt-get install g++"; exit 1; }
	@echo 'int main(void) { return 0; }' | g++ -x c++ - -lopenblas -o /dev/null 2>/dev/null \
		|| { echo "needs OpenBLAS: apt-get install libopenblas-dev"; exit 1; }
	@echo "building MinkowskiEngine 0.5.4: two to seven minutes on two cores"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[learn]' setuptools wheel ninja
	PATH="$(abspath $(BIN)):$$PATH" CXX=g++ CFLAGS=-g0 MAX_JOBS=$(MAX_JOBS) \
		$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-cache-dir \
		--use-pep517 --no-build-isolation --no-deps --wheel-dir $(VENV)/wheels \
		--config-settings="--global-option=--cpu_only" \
		--config-settings="--global-option=--blas=openblas" MinkowskiEngine==0.5.4
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--force-reinstall $(VENV)/wheels/[Mm]inkowski[Ee]ngine-0.5.4-*.whl
	$(BIN)/python -c "from tools.minkowski import engine; engine()"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
