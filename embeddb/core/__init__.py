"""Foundation of all other rooms: names, records, errors, files in and out."""

__all__ = ["__version__"]

#: The release.
__version__ = "0.1.0"
