#!/bin/bash
# Builds wheel and sdist, checks what they say of themselves, installs the wheel in an environment of
# its own, and has it answer. Usage: release.sh TOOLS PYTHON DIRECTORY
set -euo pipefail
tools=$1 python=$2 directory=$3

"$tools/bin/pip" --version >/dev/null 2>&1 || "$python" -m venv --clear "$tools"
"$tools/bin/pip" install -qq --disable-pip-version-check --require-hashes -r requirements/release.txt

rm -rf "$directory"
"$tools/bin/python" -m build --no-isolation --outdir "$directory" . >/dev/null
"$tools/bin/twine" check --strict "$directory"/*

clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT
"$python" -m venv "$clean/venv"
"$clean/venv/bin/pip" install -qq --disable-pip-version-check --require-hashes -r requirements/runtime.txt
"$clean/venv/bin/pip" install -qq --disable-pip-version-check --no-deps "$directory"/*.whl
cd "$clean" # where nothing of the repository can be imported
venv/bin/jobctl --version
venv/bin/jobctl topology render >/dev/null
venv/bin/python -c 'from switchyard import BlockingPublisher, Client, Done, JobPublisher, job'
cd - >/dev/null
ls "$directory"
