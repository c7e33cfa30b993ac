"""The command on its hosts: hosts that cannot be reached, fail or hang."""

import pytest


@pytest.mark.long
def test_one_host_that_ssh_does_not_reach_is_tried_again_alone(cloud):
    refusal = "refuse 'ssh: connect to host 10.0.0.3 port 22: Connection refused'"
    ssh = f"[[ $worker != 2 || $(count ssh) -gt 2 ]] || {refusal}"
    status, out = cloud.launch(accelerator="v5e-16", ON_SSH=ssh)
    assert status == 0, out
    assert out.count("Trying again on host 2: ERROR: (gcloud) ssh: connect") == 2
    assert [len(cloud.calls("ssh", f"--worker={n}")) for n in range(4)] == [1, 1, 3, 1]

    status, out = cloud.launch(accelerator="v5e-16", ON_SSH=f"[[ $worker != 2 ]] || {refusal}")
    assert status == 1 and "could not start on host 2 of 4" in out and "ssh-add" in out
    assert cloud.is_clean()


def test_a_changed_host_key_is_forgotten(cloud, tmp_path):
    known = tmp_path / "known hosts"
    known.write_text("tpu.7-0 ssh-ed25519 old\ntpu.8-0 ssh-ed25519 other\n")
    message = f"""Host key for tpu.7-0 has changed and you have requested strict checking.
Offending ED25519 key in {known}:1
Host key verification failed."""
    status, out = cloud.launch(ON_SSH=f"! grep -q tpu.7-0 '{known}' || refuse '{message}'")
    assert status == 0 and "Trying again on host 0: Host key verification failed." in out
    assert known.read_text() == "tpu.8-0 ssh-ed25519 other\n"


@pytest.mark.long
def test_hosts_on_which_nothing_was_started_are_noticed(cloud):
    ssh = "[[ $worker == 0 || $(count others) -gt 3 ]] || exit 0"
    status, out = cloud.launch(accelerator="v5e-16", ON_SSH=ssh)
    assert status == 0 and "Trying again on host 1, 2, 3: its ssh ended well, but nothing" in out
    attempts = [(cloud.folder / f"attempts-{n}").read_text() for n in range(4)]
    assert attempts == ["\n"] * 4
    status, out = cloud.launch(accelerator="v5e-16", ON_SSH="[[ $worker == 0 ]] || exit 0")
    assert status == 1 and "could not start on host 1, 2, 3 of 4" in out
    assert cloud.is_clean()


@pytest.mark.long
def test_a_host_that_fails_while_the_others_save_is_tried_again(cloud):
    job = """
        [[ $attempt == 1 ]] || exit 0
        step 5; status preempted; [[ $WORKER != 2 ]] || exit 1; exit 143
    """
    status, out = cloud.launch(accelerator="v5e-16", JOB=job)
    assert status == 0 and "It failed at step 5: host 2 ended with 1\n" in out, out
