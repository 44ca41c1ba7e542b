"""What runners of generated C share: several variants a shared object, a worker that calls them,
turns in which they are timed."""
