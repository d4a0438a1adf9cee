"""Where batches run: in processes on this machine, or on a Ray cluster."""
