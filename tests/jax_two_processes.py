"""One of two processes of a job on JAX, with two devices each: ``jax_two_processes.py PORT DATA RANK``."""

import sys
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import corgiarrow as ca
import corgiarrow.jax


def in_numpy(data: str, rank: int, world_size: int, **options: Any) -> list[np.ndarray]:
    return [batch["x"] for batch in ca.Loader(ca.Reader(data, rank=rank, world_size=world_size, **options))]


def main(port: str, data: str, rank: int) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank, initialization_timeout=60)
    assert jax.process_count() == 2
    assert jax.device_count() == 4
    options: dict[str, Any] = {"columns": ["x"], "batch_size": 16, "streams": 2}
    parts = [in_numpy(data, rank, 2, **options) for rank in range(2)]
    steps = [np.concatenate(both) for both in zip(*parts, strict=True)]

    local = corgiarrow.jax.loader(data, **options)
    for found, wanted in zip(local, parts[rank], strict=True):
        assert np.array_equal(found["x"], wanted)
        assert found["x"].is_fully_addressable

    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    whole = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))
    for batch, wanted in zip(
        corgiarrow.jax.loader(data, sharding=NamedSharding(mesh, P("data")), **options), steps, strict=True
    ):
        assert batch["x"].shape == (32,)
        mine = np.concatenate([shard.data for shard in batch["x"].addressable_shards])
        assert np.array_equal(mine, wanted[16 * rank : 16 * (rank + 1)])
        assert np.array_equal(whole(batch["x"]).addressable_data(0), wanted)

    # Rows split between the devices of each process, whose other axis runs over the processes: both hold all rows.
    grid = Mesh(np.array(jax.devices()).reshape(2, 2).T, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    alone = corgiarrow.jax.loader(data, sharding=NamedSharding(grid, P("data")), **options)
    for batch, wanted in zip(alone, in_numpy(data, 0, 1, **options), strict=True):
        assert batch["x"].shape == (16,)
        assert np.array_equal(np.concatenate([batch["x"].addressable_data(n) for n in range(2)]), wanted)

    with pytest.raises(ca.OptionError, match="2 processes cannot share alike: give drop_last=True"):
        corgiarrow.jax.loader(data, sharding=NamedSharding(mesh, P("data")), columns=["x"], batch_size=48)
    jax.distributed.shutdown()
    print("as it should be")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
