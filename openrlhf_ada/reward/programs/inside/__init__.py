"""What runs inside the sandbox, with the standard library only."""
