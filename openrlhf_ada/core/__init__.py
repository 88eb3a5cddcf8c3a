"""The method, in numpy alone: how much is sampled, what is trained, with which coefficient."""

API_VERSION = 1
"""Of the names of docs/api.md that need no trainer; raised when one of them changes."""
