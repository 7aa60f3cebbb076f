"""Set up the project and generate files for make, with Python's standard library only."""
