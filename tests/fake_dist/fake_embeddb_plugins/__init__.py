"""A package that brings plug-ins through entry points."""
