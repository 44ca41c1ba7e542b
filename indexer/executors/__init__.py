"""Executor plug-ins, which run a campaign's work on some machine: one file each."""
