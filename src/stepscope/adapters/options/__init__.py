"""The options on command lines, in environment variables and in files, in every dialect."""
