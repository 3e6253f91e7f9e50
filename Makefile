# Two commands do everything on a fresh machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all fuzz lint docs site wheel clean

demo: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/repopt demo

test: $(VENV)/.installed-dev lint
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow" --cov --cov-report=term --cov-fail-under=95

test-all: $(VENV)/.installed-dev lint
	$(BIN)/pytest -n 2 --dist loadfile

# a thousand damaged files and odd command lines; `make fuzz SEED=1234` runs one of them alone
fuzz: $(VENV)/.installed-dev
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.campaign $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	$(BIN)/python -m paper docs

# the documentation as HTML; a warning, such as a link to nowhere, is an error
site: $(VENV)/.installed-site
	$(BIN)/sphinx-build -W --keep-going -n -q docs build/site
	@echo "site: build/site/index.html"

# builds sdist and wheel, then tries the wheel in an empty environment; it holds the package and nothing else
wheel: $(VENV)/bin/python
	rm -rf dist
	$(BIN)/pip install --quiet -c constraints.txt build hatchling editables
	$(BIN)/python -m build --no-isolation
	! $(BIN)/python -m zipfile -l dist/*.whl | tail -n +2 | grep -vE '^repopt(-[^/]+\.dist-info)?/'
	$(PYTHON) -m venv --clear build/wheel
	build/wheel/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd build && wheel/bin/repopt --version && wheel/bin/repopt verify --steps 5

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[report]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-site: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[site]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
