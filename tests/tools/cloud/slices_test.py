"""Slices that are asked for, waited for and deleted."""

import pytest


def test_no_capacity_is_asked_for_again(cloud):
    refusal = "There is no more capacity in the zone; RESOURCE_EXHAUSTED"
    create = f'[[ $(count create) -gt 2 ]] || refuse "{refusal}"'
    status, out = cloud.launch("--now", ON_CREATE=create)
    assert status == 0 and len(cloud.calls("create")) == 3
    assert out.count("No capacity now") == 2 and cloud.is_clean()


@pytest.mark.long
def test_a_queue_is_waited_in_and_left_after_the_longest_wait(cloud):
    waiting = {"CREATED": "WAITING_FOR_RESOURCES"}
    come = 'echo ACTIVE >"$CLOUD/requests/$slice"; echo READY >"$CLOUD/slices/$slice"'
    status, out = cloud.launch(ON_DESCRIBE=f"[[ $(count look) != 8 ]] || {{ {come}; }}", **waiting)
    assert status == 0 and "WAITING_FOR_RESOURCES, after 0 minutes" in out
    status, out = cloud.launch("--max_wait_hours=0.0001", **waiting)
    assert status == 1 and "no v6e-8 in us-west4-a within 0.0001 hours" in out
    assert cloud.is_clean()


@pytest.mark.long
def test_a_deletion_is_tried_until_it_is_seen(cloud):
    status, _ = cloud.launch(ON_DELETE='[[ $(count delete) -gt 2 ]] || refuse "internal error"')
    assert status == 0 and len(cloud.calls("delete")) == 3 and cloud.is_clean()
    status, out = cloud.launch(ON_DELETE='refuse "internal error"')
    assert status == 1 and "may still be there and cost money" in out
    assert "gcloud compute tpus queued-resources delete" in out.splitlines()[-2]
    assert "gcloud compute tpus tpu-vm delete" in out.splitlines()[-1]


@pytest.mark.long
def test_a_slice_from_before_is_deleted_however_it_was_asked_for(cloud):
    assert cloud.launch("--now", "--keep")[0] == 0
    status, out = cloud.launch()
    assert status == 0 and "was without its request: deleting it" in out and cloud.is_clean()
