# make demo   cluster the pixels of a photograph      make test   everything a change must pass
# make lint   ruff and mypy                           make clean  remove what the others made
PYTHON ?= python3
BIN    := .venv/bin

.PHONY: demo test lint clean
.DELETE_ON_ERROR:

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"tsapps needs Python 3.11 or newer, and $(PYTHON) is {v.major}.{v.minor}: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv

# One stamp for each set of extras, so that a changed pyproject.toml installs again.
.venv/%.stamp: pyproject.toml .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

demo: .venv/demo.stamp
	$(BIN)/tsapps sample china data.npy --force
	$(BIN)/tsapps kmeans data.npy --k 16 --force
	@$(BIN)/python docs/paint_china.py data-kmeans china-16.png
	@echo
	@echo "Look at china-16.png: the photograph, the same in its 16 colours, and how much of each there is. The colours:"
	@echo "  $(BIN)/python -c \"import numpy as np; print(np.load('data-kmeans/centers.npy').round())\""

test: .venv/test.stamp
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p tsapps

clean:
	rm -rf .venv build dist *.egg-info data.npy data-kmeans china-16.png
