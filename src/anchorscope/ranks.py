"""The processes that hold one model together: which one this is, and what they agree on.

Tensor parallelism gives each process a part of every weight. All of them run the same questions in
the same batches; only the first writes. Without it there is one process, and nothing here waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from anchorscope.errors import UserError

T = TypeVar("T")
TENSOR_PARALLEL = "tensor-parallel"  # the device's name
_PATIENCE = timedelta(hours=12)  # the others wait while the first trains probes


class _Group:
    """The processes of this run, and whether the first does something the others wait for."""

    host: Any = None  # talks over the network alone, so that it works where a device's memory ended
    alone = False


def begin() -> None:
    """Joins the processes that torchrun started; an error where there is one alone."""
    if _Group.host is not None:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise UserError(
            f"--device {TENSOR_PARALLEL} needs several processes and there is one. Start them with "
            "`torchrun --nproc-per-node 2 -m anchorscope ...`, or use --device balanced."
        )
    import torch
    import torch.distributed as dist

    here = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    if on_gpu and here >= torch.cuda.device_count():
        raise UserError(
            f"Process {here + 1} of this machine has no GPU: there are {torch.cuda.device_count()}."
            " Start as many processes as there are GPUs."
        )
    if on_gpu:
        torch.cuda.set_device(here)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=_PATIENCE)
    _Group.host = dist.new_group(backend="gloo", timeout=_PATIENCE)


def end() -> None:
    """Leaves the other processes."""
    if _Group.host is not None:
        import torch.distributed as dist

        _Group.host = None
        dist.destroy_process_group()


def count() -> int:
    """How many processes hold the model."""
    if _Group.host is None:
        return 1
    import torch.distributed as dist

    return dist.get_world_size(_Group.host)


def number() -> int:
    """The number of this process, from 0."""
    if _Group.host is None:
        return 0
    import torch.distributed as dist

    return dist.get_rank(_Group.host)


def first() -> bool:
    """Whether this is the process that writes."""
    return number() == 0


def wait() -> None:
    """Until every process is here; not where the first works alone."""
    if _Group.host is not None and not _Group.alone:
        import torch.distributed as dist

        dist.barrier(_Group.host)


def by_first(make: Callable[[], T]) -> T:
    """What the first process makes, in all of them: the others wait for it."""
    if _Group.host is None or _Group.alone:
        return make()
    import torch.distributed as dist

    parcel: list[Any] = [None, None]
    if first():
        _Group.alone = True
        try:
            parcel[0] = make()
        except UserError as error:
            parcel[1] = str(error)
        finally:
            _Group.alone = False
    dist.broadcast_object_list(parcel, src=0, group=_Group.host)
    if parcel[1] is not None:
        raise UserError(parcel[1])
    return parcel[0]


def least(number: int) -> int:
    """The least of what the processes name."""
    if _Group.host is None or _Group.alone:
        return number
    import torch
    import torch.distributed as dist

    named = torch.tensor(number)
    dist.all_reduce(named, op=dist.ReduceOp.MIN, group=_Group.host)
    return int(named)


def summed(part: Any) -> Any:
    """The sum of a tensor over the processes, on every one of them."""
    if _Group.host is None:
        return part
    import torch.distributed as dist

    whole = part.clone()
    dist.all_reduce(whole)
    return whole
