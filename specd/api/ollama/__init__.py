"""Ollama's own dialect: `/` and `/api/*`."""
