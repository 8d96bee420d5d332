"""What is at which path."""
