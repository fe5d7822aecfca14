"""What one run of an instance has recorded, as a value and as a JSON file to keep beside the tests (design 5, case TST-06).

A file holds the codec's texts as they are stored. What a sensitive step has returned stays in the database: the record says that
it was left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from durableflow.core import clock, codec, failures
from durableflow.core.exceptions import CodecError
from durableflow.engine.journal import CANCELLED, PENDING, Identity, Record
from durableflow.engine.lease import Claim, Lease, elapsed
from durableflow.engine.secrecy import StepSecrets
from durableflow.engine.sql import INSTANCE, moment, run
from durableflow.engine.steps import load_journal
from durableflow.models import WorkflowInstance
from durableflow.models.creation import database

FORMAT: Final = 1
"""Grows when a file of this version can no longer be read as the one before."""
_MARK: Final = "durableflow-recorded-run"
_COLUMNS: Final = (
    "workflow, instance_id, run_number, execution, status, seed, params, created, scheduled_for, code_version, cron"
)
_STORED: Final = tuple(
    column.name for column in fields(Record) if column.name not in ("identity", "wake_at", "token", "met")
)


@dataclass(kw_only=True)
class RecordedRun:
    """The journal of one run, with what ``run`` was given. ``left_out``: finished steps whose value is not known here."""

    workflow: str
    instance_id: str
    run_number: int
    execution: int
    status: str
    seed: UUID
    params: str | None
    created: datetime
    scheduled_for: datetime | None
    code_version: int
    records: list[Record]
    left_out: set[Identity] = field(default_factory=set)
    cron: str = ""

    @property
    def label(self) -> str:
        """``checkout/order-42``."""
        return f"{self.workflow}/{self.instance_id}"

    def claim(self) -> Claim:
        """What an execution begins with, of a lease that fences nothing: nobody may write with it."""
        return Claim(
            lease=Lease(database(), 0, 0, self.label, renewed=elapsed()),
            workflow=self.workflow,
            instance_id=self.instance_id,
            run_number=self.run_number,
            execution=self.execution + 1,
            seed=self.seed,
            params=self.params,
            created=self.created,
            scheduled_for=self.scheduled_for,
            cron=self.cron,
            deadline_at=None,
            created_by_id=None,
            code_version=self.code_version,
            interruptions=0,
            give_backs=0,
            now=clock.host_now(),
            lost_token=None,
            uncharged=False,
        )

    def journal(self) -> list[Record]:
        """Copies of the records for a replay: what an end has cancelled was still open."""
        return [
            replace(record, met=False, status=PENDING if record.status == CANCELLED else record.status)
            for record in self.records
        ]


def recorded_run(instance: WorkflowInstance) -> RecordedRun:
    """The present run of a stored instance. Reads only, and locks nothing. Raises ``WorkflowInstance.DoesNotExist``."""
    using = instance._state.db or database()
    rows = run(using, f"SELECT {_COLUMNS} FROM {INSTANCE} WHERE id = %s", [instance.pk])  # noqa: S608
    if not rows:
        raise WorkflowInstance.DoesNotExist(f"{instance.label} does not exist any more.")
    workflow, instance_id, run_number, execution, status, seed, params, created, scheduled_for, code_version, cron = (
        rows[0]
    )
    at = moment(created)
    assert at is not None  # noqa: S101  the column is NOT NULL
    lease = Lease(using, instance.pk, 0, instance.label, renewed=elapsed())
    return RecordedRun(
        workflow=workflow,
        instance_id=instance_id,
        run_number=run_number,
        execution=execution,
        status=status,
        seed=UUID(str(seed)),
        params=params,
        created=at,
        scheduled_for=moment(scheduled_for),
        cron=cron,
        code_version=code_version,
        records=load_journal(lease, run_number, ordered=True),
    )


# Files -------------------------------------------------------------------------------------------------------------------


def save(recorded: RecordedRun, folder: Path) -> Path:
    """Write the run into ``folder`` as ``WORKFLOW.INSTANCE_ID.json``, which replaces an older one; the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{recorded.workflow}.{recorded.instance_id}.json"
    path.write_text(json.dumps(_as_json(recorded), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> RecordedRun:
    """The run that ``save`` has written. Raises ValueError that names the file for anything else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("what") != _MARK:
            raise ValueError("it is no recorded run")
        if data["format"] != FORMAT:
            raise ValueError(f"it has format {data['format']}, and this version of durableflow reads format {FORMAT}")
        return _of_json(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{error!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} cannot be read: {said}. Make it anew with check-replay --save.") from error


def files(path: Path) -> Iterator[Path]:
    """The file itself, or the JSON files of a folder, by name. Raises ValueError where there is none."""
    found = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not found:
        raise ValueError(f"{path} has no *.json file: check-replay --save writes them.")
    yield from found


def _as_json(recorded: RecordedRun) -> dict[str, Any]:
    secrets = _secrets(recorded)
    return {
        "what": _MARK,
        "format": FORMAT,
        "workflow": recorded.workflow,
        "instance_id": recorded.instance_id,
        "run_number": recorded.run_number,
        "execution": recorded.execution,
        "status": recorded.status,
        "seed": str(recorded.seed),
        "params": recorded.params,
        "created": recorded.created.isoformat(),
        "scheduled_for": None if recorded.scheduled_for is None else recorded.scheduled_for.isoformat(),
        "cron": recorded.cron,
        "code_version": recorded.code_version,
        "records": [_record_as_json(record, recorded.left_out, secrets) for record in recorded.records],
    }


def _secrets(recorded: RecordedRun) -> StepSecrets:
    """What the run's sensitive steps have returned: errors of others may quote it (case SEC-09)."""
    secrets = StepSecrets()
    for record in recorded.records:
        if record.sensitive and record.output is not None:
            with suppress(CodecError):
                secrets.add(codec.loads(record.output))
    return secrets


def _record_as_json(record: Record, left_out: set[Identity], secrets: StepSecrets) -> dict[str, Any]:
    data: dict[str, Any] = {**record.identity._asdict(), **{name: getattr(record, name) for name in _STORED}}
    data["wake_at"] = None if record.wake_at is None else record.wake_at.isoformat()
    if record.sensitive:
        data["left_out"] = record.output is not None or record.identity in left_out
        data["output"] = None
        if record.error is not None:
            data["error"] = codec.dumps(failures.masked(codec.loads(record.error)))
    elif record.error is not None:
        data["error"] = codec.dumps(secrets.masked(codec.loads(record.error)))
    return data


def _of_json(data: dict[str, Any]) -> RecordedRun:
    records, left_out = [], set()
    for row in data["records"]:
        identity = Identity(row["scope"], row["kind"], row["name"], row["count"])
        record = Record(identity, **{name: row[name] for name in _STORED if name in row})
        record.wake_at = None if row["wake_at"] is None else datetime.fromisoformat(row["wake_at"])
        records.append(record)
        if row.get("left_out"):
            left_out.add(identity)
    return RecordedRun(
        workflow=data["workflow"],
        instance_id=data["instance_id"],
        run_number=data["run_number"],
        execution=data["execution"],
        status=data["status"],
        seed=UUID(data["seed"]),
        params=data["params"],
        created=datetime.fromisoformat(data["created"]),
        scheduled_for=None if data["scheduled_for"] is None else datetime.fromisoformat(data["scheduled_for"]),
        cron=data.get("cron", ""),
        code_version=data["code_version"],
        records=records,
        left_out=left_out,
    )
