"""The version of the package; every package may import it."""

__version__ = "0.5.0"
