"""Python imports this in every process of the parity runs (PYTHONPATH): seed torch, whose default seed is random.

The host shuffles its prompts with torch's global generator, which it seeds in the model actors but not in the trainer.
"""

from openrlhf_ada.platforms.import_hooks import on_import

on_import({"torch": lambda torch: torch.manual_seed(0)})
