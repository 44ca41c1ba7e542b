"""Learning from few samples, and how far a learned model may be believed: numpy and scipy alone."""
