"""Our flags, the settings that follow from them, and which combinations are refused."""
