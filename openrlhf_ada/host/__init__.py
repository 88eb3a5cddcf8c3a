"""What we know of the private shape of OpenRLHF, vLLM, Ray and DeepSpeed: the only place that reads or replaces it.

The other place is `platforms/without_gpu/`: what makes OpenRLHF run without a GPU stands there together, as nothing of
it is on beside one. Docstrings name the contract tests that fail first when an upgrade changes that shape.
"""
