"""Who a process of a job is, and how the environment says so."""

import threading

import jax
import pytest
from jax._src.clusters import ClusterEnv

from transformer_jax.process import hosts, watch

VARIABLES = (hosts.COORDINATOR, hosts.PROCESSES, hosts.PROCESS)


@pytest.fixture
def environment(monkeypatch):
    def change(**values):
        for name in (*VARIABLES, "SLURM_NTASKS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    change()
    return change


def test_a_process_that_is_alone_needs_nobody(environment):
    for values in ({"SLURM_NTASKS": "1"}, dict(zip(VARIABLES, ("a", "1", "0"), strict=True))):
        environment(**values)
        assert not hosts.join()
    assert (hosts.count(), hosts.index(), hosts.is_first()) == (1, 0, True)
    assert hosts.gather("a", "text") == ["text"]
    unlike_json = object()
    assert hosts.first(lambda: unlike_json) is unlike_json
    watch.fail(ValueError())
    watch.finish()
    assert not any(thread.name == "hosts" for thread in threading.enumerate())


def test_hosts_that_share_no_folder_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "index", lambda: 1)
    with pytest.raises(FileNotFoundError, match=f"host 1 does not see .* into {tmp_path}: .*share"):
        hosts.check_shared(tmp_path / "file")
    (tmp_path / "file").touch()  # by the first
    hosts.check_shared(tmp_path / "file")


def test_the_only_task_of_a_slurm_node_has_all_its_devices(environment):
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "node[1-2]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
    }
    for tasks, expected in (("2", []), ("16", [0])):  # [0]: the first; []: no choice, so all
        environment(**step, SLURM_NTASKS=tasks)
        arguments = hosts._arguments()
        assert arguments is not None
        *_, devices = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, arguments.get("local_device_ids"), None, None
        )
        assert devices == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("a:1", "2", None), "TRANSFORMER_JAX_COORDINATOR, TRANSFORMER_JAX_PROCESSES is set"),
        ((None, None, "0"), "only TRANSFORMER_JAX_PROCESS is set: set all three"),
        (("a:1", "two", "0"), "TRANSFORMER_JAX_PROCESSES='two'"),
        (("a:1", "2", "2"), "TRANSFORMER_JAX_PROCESS=2 does not lie in 0 to .* = 1"),
    ],
)
def test_mistakes_in_the_environment_are_named(environment, values, message):
    pairs = zip(VARIABLES, values, strict=True)
    environment(**{name: value for name, value in pairs if value is not None})
    with pytest.raises(ValueError, match=message):
        hosts.join()


def test_the_port_is_fixed(environment, monkeypatch):
    """A default of JAX's has once shut slices off, whose firewalls let the older one through."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **kwargs: calls.append(kwargs))
    for address, expected in (("a", "a:8476"), ("a:9", "a:9")):
        environment(**dict(zip(VARIABLES, (address, "2", "1"), strict=True)))
        hosts._initialize(hosts._arguments() or {})
        assert calls[-1]["coordinator_address"] == expected
        assert (calls[-1]["num_processes"], calls[-1]["process_id"]) == (2, 1)
        assert calls[-1]["initialization_timeout"] >= 1800
