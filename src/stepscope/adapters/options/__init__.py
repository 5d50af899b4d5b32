"""The options in every dialect, on command lines, in environment variables and files."""
