"""Questions about tensor kernels: what the learned model says of their tiles, what is shown."""
