"""Builds the llama-server that benchmarks compare specd with."""
