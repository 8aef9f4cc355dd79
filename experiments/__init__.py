"""One file a question: `python -m experiments` lists them."""
