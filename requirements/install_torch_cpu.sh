#!/usr/bin/env bash
# Install torch's CPU build into a virtual environment:
#
#   requirements/install_torch_cpu.sh VENV
#
# cpu.txt pins it as torch==X+cpu. PyPI has only the CUDA build, under the version X: pip does not take it for that pin, and
# replaces it where it is installed. The CPU build comes from the first of these that applies:
#   1. the index that the variable TORCH_INDEX names;
#   2. what pip is configured to use, such as a mirror or a folder of wheels;
#   3. PyTorch's own index, whose address uv knows.
set -euo pipefail

uv=uv==0.13.9
venv=${1:?usage: install_torch_cpu.sh VENV}
index=${TORCH_INDEX:-}
torch=$(grep '^torch==' "$(dirname "$0")/cpu.txt")

pip_install() {
    "$venv/bin/python" -m pip install --quiet --no-deps --disable-pip-version-check "$@" 2>&1
}

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

stop() {
    printf '%s\n' "$torch is not installed." "$@" >&2
    exit 1
}

remedy="Name an index that has this build:
  make TORCH_INDEX=<index> setup
https://pytorch.org/get-started/locally/ shows its address: choose Linux, Pip, Python and CPU.
Without a network, name a folder that has the wheels: PIP_FIND_LINKS=<folder> make setup"

forget_unfinished

if [[ $index ]]; then
    said=$(PIP_NO_INDEX=0 pip_install --index-url "$index" "$torch") ||
        stop "pip could not install it from TORCH_INDEX=$index:" "$said" "$remedy"
    exit
fi

said=$(pip_install "$torch") && exit
if [[ $said != *"No matching distribution found for torch"* ]]; then
    stop "pip ended with an error:" "$said" "Remove its cause, then run make again: what is installed stays."
fi

echo "  pip's index has no $torch (PyPI has only the CUDA build): uv takes it from PyTorch's index"
said=$(pip_install "$uv") ||
    stop "pip's index does not have it, and pip could not install uv:" "$said" "$remedy"
said=$("$venv/bin/uv" pip install --quiet --no-deps --torch-backend=cpu --python "$venv/bin/python" "$torch" 2>&1) ||
    stop "pip's index does not have it, and uv could not install it from PyTorch's index:" "$said" "$remedy"
