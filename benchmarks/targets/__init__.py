"""Measure the project's ten targets, judge them and render docs/benchmarks.md."""
