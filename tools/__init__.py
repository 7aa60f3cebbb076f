"""Generate pages from code and data, and build what tests need of llama.cpp."""
