# make demo      cluster the pixels of a photograph      make test      what every change must pass; no GPU needed
# make lint      style and types                         make test-all  that, and all long tests and every kernel compiled
# make docs      the documentation site, in build/docs           make dist     wheel and sdist, built, checked, installed
# make man       a manual page for each command, in build/man     make clean    remove what the others made
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: demo test test-all test-compile test-long test-torch lint docs man dist clean
.DELETE_ON_ERROR:

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"tsapps needs Python 3.11 or newer, and $(PYTHON) is {v.major}.{v.minor}: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras, so that a changed pyproject.toml installs again.
$(VENV)/%.stamp: pyproject.toml $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/tsapps sample china data.npy --force
	$(BIN)/tsapps kmeans data.npy --k 64 --force
	@$(BIN)/python docs/paint_china.py data-kmeans china-64.png
	@echo
	@echo "Look at china-64.png: the photograph, the same in its 64 colors, and how much of each there is. The colors:"
	@echo "  $(BIN)/python -c \"import numpy as np; print(np.load('data-kmeans/centers.npy').round())\""

test: $(VENV)/test.stamp
	$(PYTEST) -m "not exhaustive and not compile"

# Every kernel compiled by NVRTC: the part of test-long that a change must pass.
test-compile: $(VENV)/test.stamp $(VENV)/compile.stamp
	$(PYTEST) --durations=20 -m "compile and not exhaustive"

# What make test leaves out; no test runs in both.
test-long: $(VENV)/test.stamp $(VENV)/compile.stamp
	$(PYTEST) --durations=40 -m "exhaustive or compile"

# What is for torch, with its own tests: torch is not part of the extra test, because it is large.
test-torch: $(VENV)/test-torch.stamp
	$(PYTEST) -m "not exhaustive and not compile" tests/abft/modules tests/abft/files
	$(PYTEST) -m "not exhaustive and not compile" -k torch tests --ignore tests/abft

test-all: test test-long test-torch

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find kernels apps \( -name "*.cuh" -o -path "*/ladder/cpu/*.[ch]" \) -exec $(BIN)/clang-format --dry-run --Werror {} +
	$(BIN)/mypy -p tsapps

docs: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

# A manual page for each command, in build/man, from the same pages as the site.
man: docs
	$(BIN)/python -m sphinx --fail-on-warning --quiet --builder man --doctree-dir build/docs/.doctrees docs build/man

# What could be published: the installed wheel is the one made from the sdist.
dist: $(VENV)/dev.stamp
	rm -rf dist build/dist-venv
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/dist-venv
	build/dist-venv/bin/python -m pip install --quiet dist/*.whl
	cd build && dist-venv/bin/tsapps --version && dist-venv/bin/tsapps info > /dev/null

clean:
	rm -rf $(VENV) build dist *.egg-info data.npy data-kmeans china-64.png docs/_generated
