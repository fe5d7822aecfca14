"""Whether a database has the tables that this code needs, asked before anything works with them.

A cluster that found it out later would fail in each of its processes, and an instance that is executed on tables of an
older version would be blocked with an error of ours.
"""

from __future__ import annotations

from django.apps import apps
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, Error, connections, router
from django.db.migrations.loader import MigrationLoader

from durableflow.core.outages import passes


def require(using: str, app: str, purpose: str = "") -> None:
    """Raise CommandError, which ends the command with status 1, unless the database ``using`` has all tables of ``app``,
    as its newest migration leaves them. ``purpose``: what they are for.

    A database that does not answer at the moment is no error here: who needs it waits for it. One that is ahead, because
    newer code has migrated it, is none either: that is how a deploy goes.
    """
    try:
        lack = missing(using, app)
    except Error as error:
        if passes(error):
            return
        lack = f"cannot be asked for the tables of {app}: {' '.join(str(error).split())}"
    if lack:
        settings = connections[using].settings_dict
        option = "" if using == DEFAULT_DB_ALIAS else f" --database={using}"
        raise CommandError(
            f"The database {using!r} ({connections[using].vendor}, {settings['NAME']}) {lack}"
            f"{purpose and f', {purpose}'}. Run 'manage.py migrate{option}' first."
        )


def missing(using: str, app: str) -> str:
    """What the database lacks of ``app``, as the end of a sentence about it; '' if nothing."""
    connection = connections[using]
    models = apps.get_app_config(app).get_models()
    wanted = {model._meta.db_table for model in models if router.allow_migrate_model(using, model)}
    absent = wanted - set(connection.introspection.table_names(include_views=True))
    if absent:
        which = "the tables" if absent == wanted else f"the tables {', '.join(sorted(absent))}"
        return f"lacks {which} of {app}"
    # A project that makes its tables without migrations has none in the graph.
    loader = MigrationLoader(connection)
    steps = [node for leaf in loader.graph.leaf_nodes(app) for node in loader.graph.forwards_plan(leaf)]
    behind = [
        name for label, name in dict.fromkeys(steps) if label == app and (label, name) not in loader.applied_migrations
    ]
    if behind:
        return f"lacks migrations of {app} ({', '.join(behind)})"
    return ""
