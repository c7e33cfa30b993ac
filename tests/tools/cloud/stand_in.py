"""A stand-in cloud for `launch.sh tpu`: gcloud, gcsfuse and Python are scripts on PATH.

launch.sh, the launcher and worker.sh are the real ones. The stand-in's hosts are folders, on which
it really runs what is sent to them; its bucket is a folder; its slices are files that hold a state.
Environment variables tell it, as shell code, what goes wrong.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# All that the launcher and its worker need of the repository.
SHIPPED = """.gitignore launch.sh transformer_jax/__init__.py transformer_jax/commands/__init__.py
    transformer_jax/devices/__init__.py transformer_jax/devices/chips.py
    transformer_jax/tools/__init__.py transformer_jax/tools/accelerators.py""".split()
SHIPPED += [str(path.relative_to(ROOT)) for path in ROOT.glob("transformer_jax/tools/cloud/*.*")]

# `storage` on the folder $CLOUD/objects, `ssh` into the folders $CLOUD/host-N, and slices as the
# files $CLOUD/requests/NAME and $CLOUD/slices/NAME. $ON_CREATE, $ON_DESCRIBE, $ON_SSH and $ON_WRITE
# are run before the answer is given, and may exit with another one.
GCLOUD = r"""#!/usr/bin/env bash
echo "$(printf '%q ' gcloud "$@")" >>"$CLOUD/calls${WORKER+-of-hosts}"
refuse() { echo "ERROR: (gcloud) $1" >&2; exit 1; }
count() { echo >>"$CLOUD/count-$1"; wc -l <"$CLOUD/count-$1"; }  # how often it was asked
flag() { local a; for a in "${all[@]}"; do [[ $a != --$1=* ]] || echo "${a#*=}"; done; }
path() { echo "$CLOUD/objects/${1#gs://}"; }
all=("$@") words=()
for argument; do [[ $argument == --* ]] || words+=("$argument"); done
[[ ${words[0]} != alpha ]] || words=("${words[@]:1}")
case "${words[*]}" in
    "auth list") echo "${ACCOUNT-me@example.com}" ;;
    "config get-value project") echo "${PROJECT-a-project}" ;;
    "storage buckets describe "*) echo us-west4 ;;
    "storage cp "*)
        source=${words[2]} target=$(path "${words[3]}")
        if [[ ${words[2]} == gs://* ]]; then
            eval "${ON_READ-}"
            cp "$(path "$source")" "${words[3]}"
            exit
        fi
        eval "${ON_WRITE-}"
        mkdir -p "$(dirname "$target")"
        [[ -z $(flag if-generation-match) || ! -e $target ]] || refuse "HTTPError 412"
        cat -- "${source/#-//dev/stdin}" >"$target.new$$" && mv "$target.new$$" "$target" ;;
    "storage cat "*)
        range=$(flag range)
        shopt -s nullglob
        IFS= files=($(path "${words[2]}"))
        [[ -e ${files[0]-} ]] || refuse "the following URLs matched no objects: ${words[2]}"
        [[ $range != *- ]] || range=+$((${range%-} + 1))
        cat "${files[@]}" | tail -c "${range:-+1}" ;;
    "storage rm "*) rm "$(path "${words[2]}")" ;;
    "compute tpus "*" create "*)
        eval "${ON_CREATE-}"
        slice=${words[4]} state=${CREATED-ACTIVE}
        if [[ ${words[2]} == queued-resources ]]; then
            [[ ! -e $CLOUD/requests/$slice ]] || refuse "ALREADY_EXISTS"
            echo "$state" >"$CLOUD/requests/$slice"
        fi
        [[ $state != ACTIVE ]] || echo READY >"$CLOUD/slices/$slice" ;;
    "compute tpus "*" describe "*)
        slice=${words[4]} folder=slices
        eval "${ON_DESCRIBE-}"
        [[ ${words[2]} == tpu-vm ]] || folder=requests
        cat "$CLOUD/$folder/$slice" 2>/dev/null || refuse "NOT_FOUND: $slice" ;;
    "compute tpus "*" delete "*)
        slice=${words[4]} folder=slices
        eval "${ON_DELETE-}"
        [[ ${words[2]} == tpu-vm ]] || folder=requests
        [[ -e $CLOUD/$folder/$slice ]] || refuse "NOT_FOUND: $slice"
        for pid in $(cat "$CLOUD"/host-*/transformer_jax/pid 2>/dev/null); do
            kill -KILL -- "-$pid" 2>/dev/null
        done
        rm -rf "$CLOUD/$folder/$slice" "$CLOUD/slices/$slice" "$CLOUD"/host-* ;;
    "compute tpus tpu-vm ssh "*)
        worker=$(flag worker)
        eval "${ON_SSH-}"
        [[ $(cat "$CLOUD/slices/${words[4]}" 2>/dev/null) == READY ]] || refuse "ssh: no route"
        mkdir -p "$CLOUD/host-$worker" && cd "$CLOUD/host-$worker"
        HOME=$PWD WORKER=$worker exec bash -c "$(flag command)" ;;
    *) refuse "the stand-in does not know: $*" ;;
esac
"""
KEYGEN = r"""#!/usr/bin/env bash
[[ $1 == -f && $3 == -R ]] && sed -i "/^$4 /d" "$2"
"""
GCSFUSE = r"""#!/usr/bin/env bash
rmdir "${@: -1}" 2>/dev/null || rm -f "${@: -1}"
mkdir -p "$CLOUD/objects/${@: -2:1}" && ln -s "$CLOUD/objects/${@: -2:1}" "${@: -1}"
"""
# Makes an environment out of a copy of itself; as the job, a run or a sweep, it runs $JOB. All
# else, as the launcher, has the standard library alone: -S leaves out packages.
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
    "-c import pip" | "-m pip --python "*) ;;
    "-m venv --clear "*)
        rm -rf "${{@: -1}}" && mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
    *"-m pip "*) eval "${{PIP_DOES-}}" ;;
    *"-m transformer_jax.main "* | *"-m experiments.run "*)
        for argument; do [[ $argument != --@(workdir|runs_dir)=* ]] || run=${{argument#*=}}; done
        mkdir -p "$run"
        echo "host $WORKER: $JAX_PLATFORMS $*"
        first() {{ [[ $WORKER == 0 ]]; }}
        step() {{ ! first || echo "{{\\"step\\": $1, \\"x\\": 0}}" >>"$run/metrics.jsonl"; }}
        status() {{ ! first || echo "{{ \\"status\\": \\"$1\\" }}" >"$run/results.json"; }}
        attempt=$(echo >>"$CLOUD/attempts-$WORKER"; wc -l <"$CLOUD/attempts-$WORKER")
        eval "${{JOB-}}" ;;
    *) exec '{sys.executable}' -S "$@" ;;
esac
"""
# Trains until the test or a signal ends it.
UNTIL_STOPPED = """
    trap 'status preempted; step 7; exit 143' TERM
    status running
    while :; do sleep 0.05; done
"""
TRAIN = ("train", "--config=configs/mine.py", "--workdir=gs://bucket/runs/a b")


class Cloud:
    """A clone of the repository, and the stand-ins."""

    def __init__(self, root: Path):
        self.clone = root / "a clone"
        self.cwd = root
        self.folder = root / "cloud"
        self.workdir = self.folder / "objects/bucket/runs/a b"
        for name in ("slices", "requests", "objects"):
            (self.folder / name).mkdir(parents=True)
        binaries = root / "bin"
        binaries.mkdir()
        scripts = {"gcloud": GCLOUD, "gcsfuse": GCSFUSE, "ssh-keygen": KEYGEN}
        scripts["python3.11"] = PYTHON
        for name, script in scripts.items():
            (binaries / name).write_text(script)
            (binaries / name).chmod(0o755)
        for name in SHIPPED:
            (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.clone / name)
        (self.clone / "configs").mkdir()
        (self.clone / "transformer_jax/configs").symlink_to("../configs")
        for name in ("pyproject.toml", "constraints.txt", "configs/mine.py"):
            (self.clone / name).touch()
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
            subprocess.run(["git", "-C", self.clone, *identity, *arguments], check=True)
        self.started: list[subprocess.Popen[str]] = []
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"},
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "CLOUD": str(self.folder),
        }

    def start(self, *flags: str, accelerator="v6e-8", command=TRAIN, **environment: str):
        """v6e-8 has one host, v5e-16 four."""
        common = ["--poll_seconds=0.05", f"--accelerator={accelerator}", "--zone=us-west4-a"]
        process = subprocess.Popen(
            [self.clone / "launch.sh", "tpu", *common, *flags, *command],
            cwd=self.cwd,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def launch(self, *flags: str, **arguments) -> tuple[int, str]:
        """Returns the exit status, and what was printed."""
        process = self.start(*flags, **arguments)
        out, _ = process.communicate(timeout=300)
        return process.returncode, out

    def calls(self, *words: str) -> list[str]:
        """The calls of gcloud that hold all these words."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if all(word in line for word in words)]

    def is_clean(self) -> bool:
        """Whether nothing is left that costs, and the work directory is free again."""
        costs = [*(self.folder / "slices").iterdir(), *(self.folder / "requests").iterdir()]
        return not costs and not (self.workdir / "launch/lease").exists()

    def close(self) -> None:
        """Ends what a failed test has left running."""
        for process in self.started:
            process.kill()
            process.wait()
        for path in self.folder.glob("host-*/transformer_jax/pid"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(path.read_text()), signal.SIGKILL)
