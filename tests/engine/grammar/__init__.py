"""Grammars over a small vocabulary; over real models in tests/engine/llama."""
