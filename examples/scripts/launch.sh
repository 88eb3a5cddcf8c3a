# shellcheck shell=bash
# Sourced by the scripts here: finds openrlhf-ada; runs a command, or prints it with DRY_RUN=1.

# What `make setup` installs, where nothing else is on the path.
if ! command -v openrlhf-ada >/dev/null; then
  PATH=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.venv/bin:$PATH
fi

launch() {
  if [[ ${DRY_RUN:-0} != 0 ]]; then
    printf '%q ' "$@"; echo
  else
    "$@"
  fi
}
