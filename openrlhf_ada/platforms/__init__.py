"""Where training runs. `cpu` is the only place that knows there may be no GPU; deleting it leaves the GPU product whole."""
