"""Where training runs. Only this folder knows that there may be no GPU."""
