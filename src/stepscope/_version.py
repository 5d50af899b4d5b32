"""The version, in a module that imports nothing, so that it is cheap to ask for."""

__version__ = "0.1.0.dev0"
