#!/bin/sh
# Print the first Python that runs, has a minor version from the arguments, and can make virtual environments.
# usage: find_python.sh 3.11 3.12 ...   (in order of preference); status 1 if there is none
for version in "$@"; do
    for python in "python$version" python3 python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python; do
        # A name on the PATH may be a shim of a version manager that only prints an error: so run it.
        if "$python" -c "import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
            "$python" -c 'import sys; print(sys.executable)'
            exit 0
        fi
    done
done
echo "No usable Python found (tried: $*). It needs the modules venv and ensurepip (Debian: apt install python3-venv)." >&2
exit 1
