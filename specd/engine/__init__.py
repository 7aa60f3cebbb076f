"""The child process that owns llama.cpp: one loop over the slots of one model and its drafter.

Started as `python -m specd.engine`; nobody imports this room (runner meets it in ipc).
"""
