#!/usr/bin/env bash
# The first hour on a machine with GPUs: checks the installation, runs a test for each path of docs/gpu.md, measures, and
# writes one file, gpu-machine.json, which `openrlhf-ada plan --machine` reads. What it prints can be pasted into an issue:
# GPUs, driver and versions; no names, no addresses, no keys. The same call goes on where it was interrupted.
#
#   tests/gpu/first_run.sh --dry-run    what would run, for how long, and why something would not
#   tests/gpu/first_run.sh              run; --help has more
#
# PYTHON names the interpreter of the GPU installation (.venv/bin/python, else python3).
# Exit status: 0 something passed and nothing failed, 1 something failed, nothing passed or there is no GPU, 2 bad usage.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=$ROOT/.venv/bin/python
  [[ -x $PYTHON ]] || PYTHON=python3
fi
if ! "$PYTHON" -c 'import openrlhf_ada; from importlib.metadata import version; version("openrlhf")' 2>/dev/null; then
  echo "first_run: $PYTHON has no installation of openrlhf_ada for training. docs/install.md says how to install it for GPUs; PYTHON=... names another" >&2
  exit 1
fi
exec "$PYTHON" "$ROOT/tests/gpu/first_run.py" "$@"
