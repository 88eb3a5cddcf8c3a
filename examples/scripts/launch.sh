# shellcheck shell=bash
# Sourced by the scripts here: where openrlhf-ada is; runs a command, or prints it with DRY_RUN=1.

# What `make setup` installs, where nothing else is on the path. Its path, since a command that is printed is typed in a shell
# that may not know it either. For the scripts:
# shellcheck disable=SC2034
program=openrlhf-ada
if ! command -v openrlhf-ada >/dev/null; then
  program=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.venv/bin/openrlhf-ada
fi

launch() {
  if [[ ${DRY_RUN:-0} != 0 ]]; then
    printf '%q ' "$@"; echo
  else
    "$@"
  fi
}
