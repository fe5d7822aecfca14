"""Many rows in one statement: copies of a row, whatever columns its table has."""

from __future__ import annotations

import json
from typing import Any

from django.apps import apps
from django.core.management.color import no_style
from django.db import connection, models, transaction

from durableflow.models import StepRecord, WorkflowInstance


def numbers(count: int) -> str:
    """A table ``g`` with a column ``n`` from 1 to ``count``, as the head of a statement."""
    if connection.vendor == "postgresql":
        return f"WITH g(n) AS (SELECT generate_series(1, {count}))"
    return f"WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {count})"


def moment(seconds: str) -> str:
    """The present moved by a number of whole seconds, which is an SQL expression, as the table keeps it."""
    if connection.vendor == "postgresql":
        return f"now() + make_interval(secs => {seconds})"
    return f"strftime('%Y-%m-%d %H:%M:%S', 'now', ({seconds}) || ' seconds') || '.000001'"


def clone(row: models.Model, count: int, /, **columns: str) -> None:
    """Insert ``count`` copies of ``row``; ``columns`` gives SQL expressions for those that differ, of the number ``n``."""
    fields = [str(field.column) for field in row._meta.concrete_fields if not field.primary_key]
    if unknown := set(columns) - set(fields):
        raise ValueError(f"{row._meta.label} has no columns {sorted(unknown)}.")
    table = connection.ops.quote_name(row._meta.db_table)
    names = ", ".join(connection.ops.quote_name(name) for name in fields)
    values = ", ".join(columns.get(name, f"t.{connection.ops.quote_name(name)}") for name in fields)
    execute(f"{numbers(count)} INSERT INTO {table} ({names}) SELECT {values} FROM g, {table} t WHERE t.id = %s", row.pk)


def lengthen(instance: WorkflowInstance, steps: int) -> None:
    """The journal of a waiting ``Replayed`` with one step becomes one of ``steps`` steps."""
    step = StepRecord.objects.get(instance=instance, name="step")
    StepRecord.objects.filter(instance=instance, seq__gt=step.seq).update(seq=models.F("seq") + steps)
    clone(
        step,
        steps - 1,
        count="n + 1",
        seq=f"{step.seq} + n",
        output="CAST(n AS text)",
    )
    table = WorkflowInstance._meta.db_table
    execute(f"UPDATE {table} SET params = %s WHERE id = %s", json.dumps({"steps": steps}), instance.pk)


def analyze() -> None:
    """Fresh statistics, and on PostgreSQL the visibility map, as autovacuum leaves them soon after."""
    execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")


def execute(sql: str, *values: Any) -> None:
    """One statement, committed."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)


def fresh() -> None:
    """Delete all rows of the app: a measurement begins with empty tables."""
    tables = [
        model._meta.db_table for model in apps.get_app_config("durableflow").get_models(include_auto_created=True)
    ]
    with transaction.atomic():
        for statement in connection.ops.sql_flush(no_style(), tables, reset_sequences=True, allow_cascade=True):
            execute(statement)
