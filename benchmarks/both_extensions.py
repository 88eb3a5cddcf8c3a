"""For weight_sync.py: workers of vLLM that can be sent weights both ways. Found by name in vLLM's processes."""

import ipc_stand_in
from host_weight_sync import HostWorkerExtension

from openrlhf_ada.weights.receiver import PolicyWeightsExtension

ipc_stand_in.install(setattr)


class BothExtensions(PolicyWeightsExtension, HostWorkerExtension):
    """Ours and OpenRLHF's methods."""
