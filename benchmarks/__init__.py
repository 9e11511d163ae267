"""Ratios from one run on one machine: `python -m benchmarks` (or `make bench`)."""
