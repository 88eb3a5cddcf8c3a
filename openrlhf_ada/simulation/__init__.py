"""The same policies on coin flips and on engines in virtual time."""
