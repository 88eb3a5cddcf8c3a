#!/usr/bin/env bash
# Set up a virtual environment with all that cpu.txt or gpu.txt lists and with this package, or complete one:
#
#   requirements/setup.sh VENV          for a machine without a GPU: what `make setup` runs
#   requirements/setup.sh --gpu VENV    for NVIDIA GPUs; compiles flash-attn
#
# It needs Linux on x86-64, a package index, and one of: Python 3.11, Python 3.12, uv, or any Python 3 with pip. uv brings Python
# 3.11 where there is none. With --gpu also nvcc and a C++ compiler. Run it again after an interruption: it goes on.
#
# Without a GPU, torch is pinned as torch==X+cpu. PyPI has only the CUDA build, under the version X: pip does not take it for
# that pin, and replaces it where it is installed. The CPU build comes from the first of these that applies:
#   1. the index that the variable TORCH_INDEX names;
#   2. what pip is configured to use, such as a mirror or a folder of wheels;
#   3. PyTorch's own index, whose address uv knows.
#
# Everything else comes by uv, or by pip where pip is configured to use another index than PyPI. If one fails, the other is tried.
#
# flash-attn comes last, since its set-up imports torch, and calls ninja and nvcc. FLASH_ATTN_WHEEL is a wheel to take instead, a file
# or an address (https://), or `none` to leave flash-attn out: OpenRLHF cannot be imported without it.
#
# Variables: PYTHON (an interpreter of version 3.11 or 3.12), TORCH_INDEX, those of pip and uv (UV_DEFAULT_INDEX, ...), and those
# of flash-attn's build: MAX_JOBS, FLASH_ATTN_CUDA_ARCHS, CUDA_HOME.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
uv_pin=uv==0.13.9
lock=$here/cpu.txt command="make setup"
if [[ ${1:-} == --gpu ]]; then
    lock=$here/gpu.txt command="requirements/setup.sh $*"
    shift
fi
venv=${1:?usage: setup.sh [--gpu] VENV}
index=${TORCH_INDEX:-}
wheel=${FLASH_ATTN_WHEEL:-}

pin() { grep "^$1==" "$lock"; }
for_gpus() { [[ $lock == */gpu.txt ]]; }
torch=$(pin torch)

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
        "  install uv (https://docs.astral.sh/uv/), then run it again;" \
        "  on Debian and Ubuntu: apt install python3.11-venv, or python3.12-venv;" \
        "  name an interpreter: PYTHON=/path/to/python3.11 $command"
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
  TORCH_INDEX=<index> make setup
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
        torch_is_missing "pip ended with an error:" "$said" "Remove its cause, then run it again: what is installed stays."
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

# gpu.txt names flash-attn too, which is not ready to be installed with the others.
listed() { grep -v '^flash-attn==' "$lock"; }
by_uv() { find_uv && said=$(listed | uv_install -r /dev/stdin); }
by_pip() { said=$(listed | pip_install -r /dev/stdin); }

# The lock is complete, so nothing is resolved. Two ways, in the order in which they probably work.
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
    stop "The packages of requirements/${lock##*/} are not installed." "$first" "$way: $said" \
        "Remove the cause, then run it again: what is installed stays."
}

# -- flash-attn ---------------------------------------------------------------------------------------------------------

# All that it is compiled with, before anything is downloaded. torch refuses nvcc of another major version than its own.
find_compilers() {
    local needed on_path homes home release
    needed=$(pin nvidia-cuda-nvcc | sed 's/.*==\([0-9]*\.[0-9]*\).*/\1/')
    on_path=$(command -v nvcc || true)
    homes=("${on_path%/bin/nvcc}" /usr/local/cuda "/usr/local/cuda-$needed")
    if [[ ${CUDA_HOME:-} ]]; then homes=("$CUDA_HOME"); fi
    for home in "${homes[@]}"; do
        release=$("$home/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p') || true
        if [[ $release == "${needed%.*}" && -e $home/include/cuda_runtime.h ]]; then
            export CUDA_HOME=$home
            break
        fi
        release=""
    done
    [[ $release ]] || stop "flash-attn is compiled with CUDA ${needed%.*}'s nvcc and headers, which are not in: ${homes[*]}" \
        "Install NVIDIA's CUDA toolkit $needed, or name its folder: CUDA_HOME=<folder> $command"
    command -v c++ >/dev/null || stop "flash-attn is compiled with c++, which is not there: apt install g++"
    "$venv/bin/python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        stop "flash-attn is compiled with Python.h, which this Python lacks. On Debian and Ubuntu: apt install python3-dev"
}

refuse_cpu_build() {
    if compgen -G "$venv/lib/python3.*/site-packages/torch-*+cpu.dist-info" >/dev/null; then
        stop "$venv has torch's build for CPUs.$1"
    fi
}

# Not from pip's cache, which knows nothing of the torch that a wheel was built for. FORCE_BUILD, as its set-up would otherwise
# fetch a wheel that nobody named, and an older pip without --use-pep517 whatever it lacks. torch looks for ninja on the path:
# without it, one file is compiled after the other.
install_flash_attn() {
    local said
    said=$(PATH=$(cd "$venv" && pwd)/bin:$PATH FLASH_ATTENTION_FORCE_BUILD=TRUE \
        pip_install --no-cache-dir --no-build-isolation --use-pep517 "${wheel:-$(pin flash-attn)}") ||
        stop "flash-attn is not installed:" "$said" "Remove the cause, then run $command again: what is installed stays."
    said=$("$venv/bin/python" -c 'import torch, flash_attn_2_cuda' 2>&1) ||
        stop "flash-attn was built for another torch than $torch:" "$said" "Remove it (pip uninstall flash-attn), then run $command again."
}

# -- in this order ------------------------------------------------------------------------------------------------------

[[ $(uname -sm) == "Linux x86_64" ]] || stop "The set-up needs Linux on x86-64 (vLLM has no other wheels); this is $(uname -sm)."
if for_gpus; then size="about 10 GB; flash-attn is compiled, for an hour or more"; else size="about 3.5 GB, one to five minutes"; fi
echo "Setting up $venv, once: $size."
fits "$venv/bin/python" || make_environment
forget_unfinished
if [[ $wheel == *://* && $wheel != https://* ]]; then stop "FLASH_ATTN_WHEEL is $wheel: expected https://..., a file, or none"; fi
if for_gpus; then
    refuse_cpu_build " Name another folder."
    if [[ ! $wheel ]]; then find_compilers; fi
else
    echo "  torch, CPU build"
    install_torch
fi
echo "  OpenRLHF, vLLM, Ray, DeepSpeed and what they need"
install_the_rest
if for_gpus; then
    refuse_cpu_build " It came from what pip or uv is configured to use: without that, remove $venv and run $command again."
    if [[ $wheel != none ]]; then
        echo "  flash-attn${wheel:+ from $wheel}"
        install_flash_attn
    fi
fi
# In an image there is only this folder.
if [[ -f $here/../pyproject.toml ]]; then
    said=$(pip_install --no-build-isolation --editable "$(dirname "$here")") || stop "openrlhf_ada is not installed:" "$said"
fi
