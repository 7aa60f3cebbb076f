"""Measures the ten targets of the design, judges them and renders docs/benchmarks.md."""
