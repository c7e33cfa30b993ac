#!/usr/bin/env bash
# On a host of a TPU slice, in the shipped checkout: starts and ends the launcher's job.
#
#   worker.sh start LAUNCH WORKER ATTEMPT SECONDS COMMAND...   ends what runs, installs, starts
#   worker.sh watch LAUNCH WORKER ATTEMPT SECONDS COMMAND...   what it starts, detached
#   worker.sh stop
#
# LAUNCH is gs://BUCKET/FOLDER/launch. LAUNCH/ATTEMPT gets log-WORKER, every SECONDS, and exit-WORKER:
# the number of the host, exit status, and the status of the run in FOLDER.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.."
state=$HOME/transformer_jax
mount=$HOME/bucket

# The bucket as a folder. Without the caches, so that a host sees at once what another one has written.
mount_bucket() {
    ! mountpoint -q "$mount" || return 0
    if ! command -v gcsfuse >/dev/null; then
        local key=/usr/share/keyrings/cloud.google.asc
        local packages=https://packages.cloud.google.com/apt
        # A new machine may be busy with its own updates, which hold apt's lock.
        local apt='sudo apt-get -qq -o DPkg::Lock::Timeout=600'
        curl -fsSL $packages/doc/apt-key.gpg | sudo tee $key >/dev/null
        echo "deb [signed-by=$key] $packages gcsfuse-$(lsb_release -cs) main" |
            sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
        $apt update && $apt install -y gcsfuse
    fi
    mkdir -p -- "$mount"
    gcsfuse --implicit-dirs --rename-dir-limit=1000000 --metadata-cache-ttl-secs=0 \
        "$1" "$mount" >/dev/null
}

# The machines' own Python is older than 3.11.
python_on_path() {
    if ! command -v python3.11 >/dev/null; then
        export PATH=$HOME/.local/bin:$PATH
        command -v uv >/dev/null || python3 -m pip install --quiet --user uv
        uv python install --quiet 3.11
        PATH=$(dirname -- "$(uv python find 3.11)"):$PATH
    fi
}

# stop: ends an earlier job, which saves, and what it may leave behind.
stop() {
    local pid wait
    pid=$(cat -- "$state/pid" 2>/dev/null) || return 0
    # After a restart of the machine the number may be another process's.
    grep -qs cloud/worker.sh "/proc/$pid/cmdline" || return 0
    kill -TERM -- "-$pid" || return 0
    for ((wait = 0; wait < 1200; wait++)); do
        kill -0 -- "-$pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
}

watch() {
    local launch=$1 worker=$2 attempt=$3 seconds=$4 job code=0 command=() argument bucket run status=''
    local log=$state/$attempt.log
    bucket=$(cut -d / -f 3 <<<"$launch")
    run=$(dirname -- "$mount/${launch#"gs://$bucket/"}")
    # No other bucket is named, so none whose name begins like this one's: the launcher refuses them.
    for argument in "${@:5}"; do command+=("${argument//"gs://$bucket"/$mount}"); done

    trap : TERM # the job gets it too; what follows its end is done here
    export JAX_COMPILATION_CACHE_DIR=$run/launch/compiled TQDM_MININTERVAL=30
    touch -- "$log"
    ./launch.sh "${command[0]}" --device=tpu "${command[@]:1}" >"$log" 2>&1 &
    job=$!
    while kill -0 "$job" 2>/dev/null; do
        gcloud storage cp --quiet "$log" "$launch/$attempt/log-$worker" || true
        sleep "$seconds" || true
    done
    wait "$job" || code=$?
    if [[ $run/results.json -nt $state/$attempt.started ]]; then # not of an earlier attempt
        status=$(sed -n 's/.*"status": "\([a-z]*\)".*/\1/p' "$run/results.json")
    fi
    until gcloud storage cp --quiet "$log" "$launch/$attempt/log-$worker" &&
        gcloud storage cp --quiet - "$launch/$attempt/exit-$worker" \
            <<<"$worker $code ${status:-none}"; do
        sleep "$seconds"
    done
}

start() {
    local launch=$1 worker=$2 attempt=$3
    mkdir -p -- "$state"
    stop
    # libtpu's, left by a process that was killed; one that is held stays.
    fuser -s /tmp/libtpu_lockfile 2>/dev/null || rm -f /tmp/libtpu_lockfile
    mount_bucket "$(cut -d / -f 3 <<<"$launch")"
    python_on_path
    ./launch.sh setup --device=tpu
    touch -- "$state/$attempt.started"
    setsid nohup bash transformer_jax/tools/cloud/worker.sh watch "$@" >"$state/watch.log" 2>&1 </dev/null &
    echo $! >"$state/pid"
    echo "started $worker"
}

"$@"
