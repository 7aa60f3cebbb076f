"""The engine room, over a strict fake and over real llama.cpp."""
