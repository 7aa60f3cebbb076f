"""The engine over real llama.cpp: the demo pair, random weights, damaged files."""
