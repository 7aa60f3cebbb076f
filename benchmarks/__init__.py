"""The project's own measurements, which no user needs: not in the wheel."""
