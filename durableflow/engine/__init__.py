"""Replay, execution and storage of instances (design 4, 6)."""
