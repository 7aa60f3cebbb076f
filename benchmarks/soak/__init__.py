"""Play an hour's traffic of a busy home server in ten minutes: see `__main__`."""
