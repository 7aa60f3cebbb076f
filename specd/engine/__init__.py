"""The child process that owns llama.cpp: one loop over the slots of one model and its drafter.

The daemon starts it as `python -m specd.engine`.  No other package imports this one; `runner` talks
to it over `ipc`.
"""
