"""The paper's tables and analyses on public data: `python -m paper`, from a checkout."""
