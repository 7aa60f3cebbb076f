"""Measures a pair for `specd bench`: workloads, padded targets, runs and reports."""
