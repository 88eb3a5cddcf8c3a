"""What was measured, and how: run from the root of the repository."""
