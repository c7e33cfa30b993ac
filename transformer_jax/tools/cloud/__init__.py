"""Runs a command of launch.sh on all hosts of a Cloud TPU slice until it is done. `launch.sh tpu`.

    ./launch.sh tpu --accelerator=v5e-16 --zone=us-west4-a --spot \\
        train --config=configs/wmt14_en_de_big.py --workdir=gs://BUCKET/runs/a

The launcher queues the slice, ships this checkout through the bucket, installs it on every host,
starts the command there detached, and shows host 0's output. A preempted slice is created again and
the command continues from its last checkpoint; so it does after a failure or a hang, unless that
would only fail again. The slice is deleted at the end, whatever the end is. The same command
continues an earlier one. WORKDIR/launch holds the code, the lease of the one launcher, and the
hosts' output.

    flags.py      the command line -> Launch
    launch.py     Launch: what runs where; the lines that are shown, and all waiting
    gcloud.py     runs gcloud, and says which of its errors would come again
    bucket.py     the code in the bucket, and the lease
    slices.py     creates, watches and deletes the slice
    jobs.py       starts the command on the hosts, follows and stops it
    worker.sh     on a host: installs, runs the command, reports its log and exit status
    launcher.py   puts these in order

It needs gcloud and the standard library. Only slices.py, and `ssh_command` in jobs.py, know through
which interface Google lends a slice.
"""
