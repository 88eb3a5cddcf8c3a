"""Which method learns most for its cost: every one at equal cost, on tasks that a small model learns in seconds."""
