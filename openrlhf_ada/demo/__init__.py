"""The toy and the demo: models and data that need no download."""
