"""Tests of the engine, over a strict fake and over real llama.cpp."""
