#!/usr/bin/env bash
# Shows on a machine with a GPU what no other can: see gpu.py, which gets all other flags.
#
#   experiments/speed/gpu.sh [--wheels=FOLDER] [--out=FILE.json] [--only=PIECE,...] [--quick]
#
# It needs Python 3.11 or newer with JAX for CUDA as python3; PyTorch and transformers are compared
# where they are installed too. --wheels: of packages that the machine lacks and cannot download.
set -euo pipefail

repository=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu} PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH}
for argument; do
    shift
    case $argument in
        --wheels=*)
            python3 -m pip install --quiet --no-index --no-deps --no-compile \
                --target "$scratch/site" "${argument#*=}"/*.whl
            PYTHONPATH+=:$scratch/site
            ;;
        *) set -- "$@" "$argument" ;;
    esac
done
# Programs of others run with this Python, unless SPEED_PEERS has one for them.
export SPEED_PEERS=${SPEED_PEERS:-$scratch}
[[ -e $SPEED_PEERS/venv ]] ||
    ln -s -- "$(python3 -c 'import sys; print(sys.prefix)')" "$SPEED_PEERS/venv"
python3 -P -m experiments.speed.gpu "$@"
