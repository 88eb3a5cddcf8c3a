"""Our flags and what they come to; which combinations are refused."""
