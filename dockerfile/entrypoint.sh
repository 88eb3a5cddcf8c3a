#!/bin/sh
# What `docker run IMAGE ...` runs. Every way out is an exec: the program has this process's id and gets its signals.
set -eu

usage() {
    cat <<'TEXT'
usage: docker run [docker's options] IMAGE COMMAND [options]

  train | eval | prepare-data | demo | demo-model | demo-data | report | plan | methods | doctor | init
                     openrlhf-ada COMMAND; `train --help` shows its flags
  ray ...            Ray's own command line, for clusters: ray start, ray job submit
  any other program  for example bash, python, vllm
TEXT
}

# With `docker run --user`, the user has no name, which torch and Ray ask for, and a home of somebody else.
if ! id -un >/dev/null 2>&1; then
    export USER="${USER:-uid-$(id -u)}"
    export LOGNAME="${LOGNAME:-$USER}"
fi
if [ ! -w "${HOME:-/}" ]; then
    HOME="$(mktemp -d)"
    export HOME
fi

case "${1:-}" in
    train | eval | prepare-data | demo | demo-model | demo-data | report | plan | methods | doctor | init)
        exec openrlhf-ada "$@"
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    '')
        usage >&2
        exit 2
        ;;
esac

# A path, and not the name of something that only this shell knows, such as `if`.
case "$(command -v -- "$1" || true)" in
    */*) exec "$@" ;;
esac
printf 'openrlhf-ada: error: no command "%s", and no program of that name in the image\n\n' "$1" >&2
usage >&2
exit 2
