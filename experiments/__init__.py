"""One file a question: `python -m experiments` lists them, `python -m experiments.NAME --help` explains."""
