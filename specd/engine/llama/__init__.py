"""llama.cpp through the low-level bindings: the only package that imports llama_cpp.

Everything that enters here has been checked before: native code aborts on much of what it is not
meant to see (batches too long, ids out of range, rows without logits).
"""
