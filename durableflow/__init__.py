"""Durable multi-step workflows for Django: plain Python, checkpointed in the project's own database."""
