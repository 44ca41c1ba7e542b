"""Learning from few samples, and the calibration of learned models: numpy and scipy alone."""
