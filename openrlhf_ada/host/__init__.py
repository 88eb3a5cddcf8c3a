"""What we know of OpenRLHF's private shape."""
