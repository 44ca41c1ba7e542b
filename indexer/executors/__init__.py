"""Plug-ins that have a campaign's work done somewhere: a file per way to do that."""
