# shellcheck shell=bash
# Sourced by the scripts here: runs a command, or prints it with DRY_RUN=1.
launch() {
  if [[ -n ${DRY_RUN:-} ]]; then
    printf '%q ' "$@"; echo
  else
    "$@"
  fi
}
