"""An hour's traffic of a busy home server, played in ten minutes: see `__main__`."""
