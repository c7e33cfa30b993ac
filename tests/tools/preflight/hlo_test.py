"""What is read from compiled programs, against programs whose exchanges and traffic are known."""

import json

import jax
import jax.numpy as jnp
import pytest

from tests.processes import on_eight_devices
from transformer_jax.tools.preflight import hlo

# Each exchange by its own name, over known axes, in a loop: so its bytes are known without XLA.
_PROGRAM = """
import json, jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from transformer_jax.tools.preflight import hlo

mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)

def exchange(x):  # (16, 8) on each device
    def body(x, _):
        whole = jax.lax.all_gather(x, "fsdp", tiled=True)
        x = jax.lax.psum_scatter(whole * 2, "fsdp", tiled=True)
        x = jax.lax.all_to_all(x, "fsdp", 0, 0, tiled=True)
        x = jax.lax.ppermute(x, "data", [(0, 1), (1, 0)])
        return jax.lax.psum(jnp.sin(x), ("data", "fsdp")), None
    return jax.lax.scan(body, x, None, length=5)[0]

spec = PartitionSpec(("data", "fsdp"))
step = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
module = hlo.parse(step.lower(jax.ShapeDtypeStruct((128, 8), jnp.float32)).compile().as_text())
print(json.dumps(hlo.collectives(module, dict(mesh.shape), [0, 0, 0, 0, 1, 1, 1, 1])))
"""


@pytest.fixture(scope="module")
def exchanges():
    fields = [hlo.Collective(*row) for row in json.loads(on_eight_devices("-c", _PROGRAM))]
    return {collective.kind: collective for collective in fields}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "axes", "group", "across", "payload", "sent"),
    [
        # A part is 16 * 8 * 4 bytes; a ring of n sends (n - 1) / n of the whole, a sum twice.
        ("all-gather", ["fsdp"], 4, 1, 2048, (1536, 0)),
        ("reduce-scatter", ["fsdp"], 4, 1, 2048, (1536, 0)),
        ("all-to-all", ["fsdp"], 4, 1, 512, (384, 0)),
        ("collective-permute", ["data"], 2, 2, 512, (0, 512)),
        # Over slices goes what is left of it within: a quarter.
        ("all-reduce", ["data", "fsdp"], 8, 2, 512, (768, 128)),
    ],
)
def test_exchanges_have_their_axes_and_bytes_as_often_as_they_run(
    exchanges, kind, axes, group, across, payload, sent
):
    traffic = exchanges[kind]
    assert (traffic.axes, traffic.group, traffic.across, traffic.calls) == (axes, group, across, 5)
    assert traffic.payload == 5 * payload
    assert traffic.sent() == tuple(5 * part for part in sent)


def test_an_all_to_all_sends_each_part_to_its_device():
    """Counted device by device: two slices of four, of which each device sends one part to all."""
    traffic = hlo.Collective("all-to-all", ("data", "fsdp"), 8, 2, 1, 8.0)
    parts = [other // 4 == 0 for other in range(8) if other != 0]
    assert traffic.sent() == (sum(parts), len(parts) - sum(parts))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("replica_groups={}", [[0, 1, 2, 3]]),
        ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [[0, 1, 2, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(1)2}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}", [[0, 1], [2, 3]]),
    ],
)
def test_all_ways_of_writing_groups_are_read(text, groups):
    assert hlo._groups(f", channel_id=1, {text}, use_global_device_ids=true", 4) == groups


def test_groups_that_cannot_be_read_are_refused():
    with pytest.raises(ValueError, match="not known"):
        hlo._groups("replica_groups=something_new", 4)


# How libtpu writes a loop over 60 layers, in which a gather overlaps with computation.
_TPU = """HloModule jit_step, is_scheduled=true

%started (param_0: bf16[128]) -> bf16[512] {
  %param_0 = bf16[128]{0:T(1024)S(1)} parameter(0)
  ROOT %all-gather.1 = bf16[512]{0:T(1024)S(1)} all-gather(%param_0), channel_id=7, _GROUPS
}

%finished (param_3: bf16[128]) -> bf16[512] {
  %param_3 = bf16[128]{0:T(1024)S(1)} parameter(0)
  ROOT %all-gather.2 = bf16[512]{0:T(1024)S(1)} all-gather(%param_3), channel_id=7, _GROUPS
}

%laid_out (param_4: bf16[60,128]) -> bf16[60,128] {
  %param_4 = bf16[60,128]{1,0:T(8,128)} parameter(0)
  ROOT %copy.1 = bf16[60,128]{1,0:T(8,128)(2,1)} copy(%param_4)
}

%cut (param_1: bf16[60,128], param_2: s32[]) -> bf16[128] {
  %param_1 = bf16[60,128]{1,0:T(8,128)} parameter(0)
  %param_2 = s32[]{:T(128)} parameter(1)
  %bitcast.1 = bf16[60,128]{1,0:T(8,128)} bitcast(%param_1)
  %again.1 = bf16[60,128]{1,0:T(8,128)(2,1)} fusion(%bitcast.1), kind=kLoop, calls=%laid_out
  ROOT %dynamic-slice.1 = bf16[1,128]{1,0:T(8,128)} dynamic-slice(%again.1, %param_2, %param_2)
}

%body (arg: (s32[], bf16[60,128])) -> (s32[], bf16[60,128]) {
  %arg = (s32[]{:T(128)}, bf16[60,128]{1,0:T(8,128)}) parameter(0)
  %counter = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %layers = bf16[60,128]{1,0:T(8,128)} get-tuple-element(%arg), index=1
  %layer = bf16[1,128]{1,0:T(8,128)S(1)} fusion(%layers, %counter), kind=kLoop, calls=%cut
  %begin = bf16[512]{0:T(1024)S(1)} fusion(%layer), kind=kCustom, calls=%started
  %end = bf16[512]{0:T(1024)S(1)} fusion(%layer), kind=kCustom, calls=%finished
  ROOT %next = (s32[]{:T(128)}, bf16[60,128]{1,0:T(8,128)}) tuple(%counter, %layers)
}

%condition (arg.1: (s32[], bf16[60,128])) -> pred[] {
  %arg.1 = (s32[]{:T(128)}, bf16[60,128]{1,0:T(8,128)}) parameter(0)
  %bound = s32[]{:T(128)} constant(60)
  %counter.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%counter.1, %bound), direction=LT
}

ENTRY %main (layers.1: bf16[60,128]) -> (s32[], bf16[60,128]) {
  %layers.1 = bf16[60,128]{1,0:T(8,128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, bf16[60,128]{1,0:T(8,128)}) tuple(%zero, %layers.1)
  ROOT %loop = (s32[], bf16[60,128]{1,0}) while(%start), condition=%condition, body=%body
}
""".replace("_GROUPS", "replica_groups=[1,4]<=[4], dimensions={0}")


def test_loops_and_overlapping_exchanges_as_a_tpu_has_them():
    """An exchange's parts count once, a slice counts as itself, and fast memory does not count."""
    module = hlo.parse(_TPU)
    (exchange,) = hlo.collectives(module, {"data": 4}, [0] * 4)
    assert (exchange.kind, exchange.axes, exchange.calls) == ("all-gather", ("data",), 60)
    assert exchange.payload == 60 * 512 * 2
    # The layer goes into fast memory; the counter of four bytes is read.
    assert _moved(module) == 60 * (128 * 2 + 4)


def _traffic(function, *arguments, **options):
    compiled = jax.jit(function, **options).lower(*arguments).compile()
    return _moved(hlo.parse(compiled.as_text() or ""))


def _moved(module):
    return sum(runs * moved for _, runs, moved in hlo.moving(module))


def test_traffic_is_what_an_elementwise_sum_reads_and_writes():
    x = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
    assert _traffic(jnp.add, x, x) == 3 * 4e6


def test_traffic_of_a_loop_over_slices_does_not_count_the_whole_each_time():
    """Ten rows are read and written once; in addition XLA may fill or copy the whole once."""
    x = jax.ShapeDtypeStruct((10, 100_000), jnp.float32)
    traffic = _traffic(lambda x: jax.lax.map(jnp.sin, x), x, donate_argnums=0)
    once = 2 * 4e6
    assert once <= traffic < 10 * once / 2
