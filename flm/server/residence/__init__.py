"""Which models are loaded, and who waits for which."""
