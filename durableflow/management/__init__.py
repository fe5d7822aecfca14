"""The command line (design 10)."""
