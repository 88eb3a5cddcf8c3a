"""Weights on their way from the policy to the engines and to disk."""
