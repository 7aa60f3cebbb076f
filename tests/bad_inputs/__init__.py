"""Send invalid requests and models to a daemon, and record how it answers."""
