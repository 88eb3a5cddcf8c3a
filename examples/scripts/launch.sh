# shellcheck shell=bash
# Sourced by the scripts here: runs a command, or prints it with DRY_RUN=1.
launch() {
  if [[ ${DRY_RUN:-0} != 0 ]]; then
    printf '%q ' "$@"; echo
  else
    "$@"
  fi
}
