"""A platform file drafted from a run log."""
