"""What make runs: the set-up and the generated files.  Needs nothing but Python's own library."""
