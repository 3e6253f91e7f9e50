"""Benchmarks: what repopt costs, as ratios taken in one run."""
