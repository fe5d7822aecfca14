#!/bin/sh
# Write the newest versions that fit into a constraints file: freeze.sh FILE DJANGO PYTHON...
set -eu
file=$1 django=$2
shift 2
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
"$(sh tools/find_python.sh "$@")" -m venv "$home"
"$home/bin/python" -m pip install -q --upgrade pip
"$home/bin/python" -m pip install -q "$django" hatchling -e '.[api,postgres,demo]' --group dev
{
    echo "# The versions that the tests run with ($("$home/bin/python" -V), $django). Written by: make constraints"
    # Names and versions alone: no address of an index or of this directory.
    "$home/bin/python" -m pip freeze --all --exclude-editable | grep -v -e @ -e "^setuptools=" | sort -f
} >"$file"
