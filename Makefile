# One command for all checks: `make check`.
.PHONY: check format lint types test build

check: lint types test build

format:
	ruff format .
	ruff check --fix .

lint:
	ruff format --check .
	ruff check .

types:
	mypy

test:
	pytest -q -n 2 --dist loadfile

build:
	python -m build --no-isolation --outdir dist .
