"""Messages between the daemon and its engine processes, and their transport."""
