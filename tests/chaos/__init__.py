"""Chaos: whole clusters at work while their processes are killed, one each second, and the database is restarted.

``python -m tests.chaos --help``; ``make chaos``. What bodies do is written to a ledger outside of the workflow tables,
and judged from there (``verdict``). As an app it has its ``workflows`` discovered.
"""
