"""Build the wheel and see that everything the package needs is in it, and nothing that is not the package's."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "durableflow"


def wheel_names() -> set[str]:
    """The files of a freshly built wheel."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
        built = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if built.returncode:
            sys.exit(f"wheel: not built\n{built.stderr}")
        [wheel] = Path(directory).glob("*.whl")
        return set(ZipFile(wheel).namelist())


def main() -> None:
    names = wheel_names()
    files = {str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    missing = sorted(files - names)
    foreign = sorted(name for name in names if not name.startswith((f"{PACKAGE}/", "django_durableflow-")))
    if missing or foreign or f"{PACKAGE}/py.typed" not in names:
        sys.exit(f"wheel: missing {missing}, not of the package {foreign}")
    print(f"wheel: {len(names)} files, all of {PACKAGE}/ is in it")


if __name__ == "__main__":
    main()
