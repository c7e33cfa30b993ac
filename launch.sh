#!/usr/bin/env bash
# Sets up .venv if needed, then trains, evaluates, generates, tests or launches on a TPU slice.
# `./launch.sh --help` says how.
set -euo pipefail

repository=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
venv=$repository/.venv

usage() {
    cat <<'END'
Usage: launch.sh [COMMAND] [--device=cpu|cuda|tpu] [FLAGS]

  (no command)   train configs/quickstart.py in runs/quickstart of this repository and print its
                 scores; when it has finished already, print them again
  train          --config=FILE --workdir=DIR [--config.KEY=VALUE ...]
  prepare        --config=FILE [--check]: tokenises the data, which train does too where it is missing
  evaluate       --workdir=DIR [--checkpoint=best|last|STEP|DIR] [--split=NAME]
  generate       --workdir=DIR [--input=FILE] [--output=FILE]: from each line
  embed          --workdir=DIR [--input=FILE] [--output=FILE]: each line as a vector
  look           --workdir=DIR --input=FILE --output=FILE.html: where the model looks, as a page
  import         --checkpoint=FOLDER --workdir=DIR: a model of Hugging Face, of thirty families
  export         --workdir=DIR --output=FOLDER [--checkpoint=...]: such a folder of one of ours
  inspect        --config=FILE: the resolved config and the model's parameters; trains nothing
  check_parameterization --config=FILE: do activations keep their size as the model grows?
  replay         --workdir=DIR --step=N: up to a bad step, in float32, to see what went wrong
  preflight      --config=FILE [--config.mesh.topology=v5e-16] [--search|--explain]: fit, speed
  compare        RUN [RUN ...] [--output=NAME]: what differs in their configs, scores, and curves
  report         RUN [RUN ...]|--experiment=NAME [--output=FILE]: the same as one page for a browser,
                 with curves, diagnostics by depth, samples and outcomes to explore
  tensorboard    --logdir=DIR [FLAGS]: the curves in a browser; the first use installs it
  configs        [WORD ...]: the configs of this repository, a line each
  keys           [WORD ...]: the keys of a config with their defaults and meanings
  experiment     NAME [--quick] [--executor=local|slurm|tpu|skypilot]: its runs and its report
                 (`experiment --help` lists all its flags)
                 NAME --new: makes a folder for a new one, with an example
  tpu            --accelerator=v5e-16 --zone=ZONE COMMAND ... --workdir=gs://BUCKET/FOLDER:
                 one of the commands above on all hosts of a Cloud TPU slice (`tpu --help`)
  test           format, lint, types and imports of the files that git tracks, and the short tests
  test FILE ...  the short tests of these files alone, named from the repository; no checks
  test --long    the long tests alone: kills, several processes, whole trainings
  test --faults  tests/faults alone, in its long form: FAULT_TRIALS=200 times of each kind;
                 with any of the three, further arguments go to pytest
  setup          only set up .venv, with the tools of `test`

Every command first sets up .venv if pyproject.toml, constraints.txt or the device ask for it;
preflight .venv-preflight, with libtpu; tpu needs Python alone.
--device   default: cuda where nvidia-smi lists a GPU, else cpu (preflight, test and setup: cpu).
Paths are relative to the current directory. A --config that is not there is looked up in the
repository, so that --config=configs/multi30k.py works from anywhere.
END
}

fail() {
    printf 'launch.sh: %s\n' "$1" >&2
    exit 1
}

# Prints the first Python that can make the environment; the version that CI tests comes first.
find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        if "$candidate" - 2>/dev/null <<'END'; then
import sys
from importlib.util import find_spec

sys.exit(sys.version_info < (3, 11) or not (find_spec("ensurepip") or find_spec("pip")))
END
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "found no Python 3.11 or newer with pip on PATH (python3 here: $(python3 -V 2>&1 || true)).
Install one, for example: apt install python3 python3-venv, or https://www.python.org/downloads"
}

# Everything that an environment is made from; scripts in it hold its path.
ingredients() {
    printf '%s\n' "$venv"
    "$venv/bin/python" -c 'import sys; print("Python", *sys.version_info[:2])' 2>/dev/null || true
    cat -- "$repository/pyproject.toml" "$repository/constraints.txt"
}

# Waits until no other process sets up this .venv; the lock falls when file descriptor 9 is closed.
lock() {
    "$1" - <<'END'
import fcntl

try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("Waiting for another launch.sh that is setting up the environment ...", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
END
}

# set_up EXTRA...: brings .venv to pyproject.toml with these extras. The stamp's first line names the
# extras, the rest the ingredients. It is written last: an installation that broke off has none.
set_up() {
    local python extra extras='' missing='' stamp=$venv/installed.stamp
    exec 9>"$venv.lock"
    python=$venv/bin/python
    "$python" -c '' 2>/dev/null || python=$(find_python)
    lock "$python"

    if [[ -f $stamp ]] && ingredients | cmp -s - <(tail -n +2 -- "$stamp"); then
        extras=$(head -n 1 -- "$stamp")
    else
        missing=all
    fi
    for extra; do
        [[ ",$extras," == *",$extra,"* ]] || { extras+=${extras:+,}$extra missing+=" $extra"; }
    done
    if [[ -n $missing ]]; then
        rm -f -- "$stamp"
        echo "Installing into $venv${extras:+, with $extras}: takes about a minute ..."
        [[ $missing != all* ]] || with_dots create_venv
        with_dots "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --no-compile --constraint "$repository/constraints.txt" \
            --editable "$repository${extras:+[$extras]}" ||
            fail "the installation failed, see above; the same command tries again."
        # Most modules are never imported. Those that a first run imports are compiled by importing
        # them: pip would compile all, and where PYTHONDONTWRITEBYTECODE is set, as in many
        # containers, every command would compile its own again. What cannot be imported, the
        # command itself will tell of.
        PYTHONDONTWRITEBYTECODE='' with_dots "$venv/bin/python" -P -c '
from contextlib import suppress
with suppress(ImportError):
    import transformer_jax.main, transformer_jax.data.read.catalogue'
        { printf '%s\n' "$extras" && ingredients; } >"$stamp.new"
        mv -- "$stamp.new" "$stamp"
    fi
    exec 9>&-
}

# with_dots COMMAND...: runs it; on a terminal a dot every two seconds shows that it is at work.
with_dots() {
    local status=0 dots=''
    if [[ -t 2 ]]; then
        (while sleep 2 && kill -0 $$; do printf . >&2; done) 9>&- &
        dots=$!
    fi
    "$@" || status=$?
    [[ -z $dots ]] || { kill "$dots" 2>/dev/null && printf '\n' >&2; } || true
    return "$status"
}

create_venv() {
    local python
    python=$(find_python) || return
    "$python" -m venv --clear --without-pip "$venv" || return
    # The newest pip: that of Python 3.11 takes three times as long to choose versions. Else that of
    # Python itself, which is in ensurepip.
    if "$python" -c 'import pip' 2>/dev/null; then
        "$python" -m pip --python "$venv/bin/python" install --quiet pip && return
    fi
    "$venv/bin/python" -m ensurepip >/dev/null
}

# run_tests [--long|--faults] ARGUMENT...: checks the code and runs the short tests; or those of files
# alone; or the long ones alone; or all that is in tests/faults.
run_tests() {
    local marked='not long and not faults' types='' status=0
    cd -- "$repository"
    export PATH="$venv/bin:$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1
    if [[ ${1:-} == --long ]]; then
        marked=long
        shift
    elif [[ ${1:-} == --faults ]]; then
        marked='' && shift
        [[ " $*" == *" tests/"* ]] || set -- tests/faults "$@"
    elif [[ " $*" != *" "[!-]* ]]; then # no file is named
        local path files=()
        # What lies beside the files of the repository, such as a config of one's own, is unchecked.
        while IFS= read -r -d '' path; do
            [[ ! -f $path ]] || files+=("$path")
        done < <(git ls-files -z -- '*.py' 2>/dev/null)
        ruff format --check "${files[@]}"
        ruff check "${files[@]}"
        lint-imports
        # Beside the tests, whose two processes often wait for others.
        types=$(mktemp)
        pyright "${files[@]}" >"$types" &
        trap "kill $! 2>/dev/null || true; rm -- '$types'" EXIT
    fi
    # A file's tests stay together: they share what they have compiled. In their order, since files
    # of few tests, which would come last otherwise, are the ones that take long. A process that
    # crashes is not replaced: xdist 3.8 then waits for ever (pytest-xdist issue 1323).
    python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder \
        --max-worker-restart=0 -m "$marked" "$@" || status=$?
    if [[ $types ]]; then
        wait $! || status=1
        cat -- "$types"
    fi
    exit "$status"
}

# run_main MODE FLAG...: from the current directory, which -P keeps off Python's path, since a folder
# there might be called configs too.
run_main() {
    exec "$venv/bin/python" -P -m transformer_jax.main --mode="$1" "${@:2}"
}

command=quickstart
if [[ $# -gt 0 && $1 != -* ]]; then
    command=$1
    shift
fi

if [[ $command == tpu ]]; then # its flags belong to the hosts
    python=$(find_python)
    PYTHONPATH=$repository exec "$python" -P -m transformer_jax.tools.cloud.launcher "$@"
fi

device='' named=''
for argument; do
    shift
    case $argument in
        -h | --help) [[ $command =~ ^(experiment|compare|report)$ ]] || command=help ;;
        --device=*) device=${argument#*=} named=$device && continue ;;
        --config=*)
            config=${argument#*=}
            if [[ -n $config && ! -e ${config%%:*} && -e $repository/${config%%:*} ]]; then
                argument=--config=$repository/$config
            fi
            ;;
    esac
    set -- "$@" "$argument"
done

case $command in
    help) usage && exit ;;
    test | setup | compare | report | tensorboard) device=${device:-cpu} ;;
    preflight) device=${device:-cpu} venv+=-preflight ;;
    quickstart | experiment) ;;
    *)
        # The modes of the command line, as their table has them.
        modes='' row='^    "([a-z_]+)": Command\('
        while IFS= read -r line; do
            [[ ! $line =~ $row ]] || modes+="${BASH_REMATCH[1]}, "
        done <"$repository/transformer_jax/commands/__init__.py"
        [[ ", $modes" == *", $command, "* ]] || fail "unknown command '$command': expected \
${modes}compare, report, tensorboard, experiment, tpu, test or setup, or none for the quickstart. \
See launch.sh --help."
        ;;
esac
if [[ -z $device ]]; then
    device=cpu
    if [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]]; then device=cuda; fi
fi
case $device in
    cpu) platforms=cpu extra='' ;;
    cuda | tpu) platforms=$device,cpu extra=$device ;;
    *) fail "unknown device '$device': expected --device=cpu, --device=cuda or --device=tpu." ;;
esac
# Before packages of the user's that are called configs or experiments too.
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH}
# With the platform named, JAX stops where the device is missing instead of falling back to the CPU.
[[ -n ${JAX_PLATFORMS:-} && -z $named ]] || export JAX_PLATFORMS=$platforms

case $command in
    test)
        set_up dev ${extra:+"$extra"}
        run_tests "$@"
        ;;
    setup) set_up dev ${extra:+"$extra"} ;;
    quickstart)
        set_up ${extra:+"$extra"}
        run_main train --config="$repository/configs/quickstart.py" \
            --workdir="$repository/runs/quickstart" "$@"
        ;;
    preflight)
        set_up preflight ${extra:+"$extra"}
        run_main preflight "$@"
        ;;
    compare | report)
        set_up
        exec "$venv/bin/python" -P -m "transformer_jax.tools.reports.$command" "$@"
        ;;
    tensorboard)
        set_up tensorboard
        exec "$venv/bin/python" -P -m tensorboard.main "$@"
        ;;
    experiment)
        set_up ${extra:+"$extra"}
        exec "$venv/bin/python" -P -m experiments.run "$@"
        ;;
    *)
        set_up ${extra:+"$extra"}
        run_main "$command" "$@"
        ;;
esac
