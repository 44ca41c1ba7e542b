"""A nest and a schedule as C, what it must compute, and the process that runs and times it."""
