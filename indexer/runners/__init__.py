"""Runners measure configurations: one file per platform that can be run from here.

A runner module defines `PLUGIN`, a class that follows `indexer.runners.base.Runner` and passes
`embeddb.testing.runners.RunnerContract`.
"""
