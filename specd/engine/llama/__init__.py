"""llama.cpp through its low-level bindings: the only package that imports llama_cpp.

Callers check all input first, because native code aborts the process on invalid input: batches that
are too long, ids out of range, rows without logits.
"""
