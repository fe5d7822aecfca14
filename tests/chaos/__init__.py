"""Chaos: whole clusters at work while their processes are killed, one each second, some are frozen for longer than
the lease, clusters are replaced as in a deploy, the database is restarted, and operators retry, resume and terminate.

``python -m tests.chaos --help``; ``make chaos``. What bodies do is written to a ledger outside of the workflow tables,
and judged from there (``verdict``). As an app it has its ``workflows`` discovered.
"""
