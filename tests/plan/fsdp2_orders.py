"""Records in which order FSDP2 uses the groups of a small model, as one process that stands for all ranks; prints a JSON object of order files."""
from __future__ import annotations

import json

import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_param_group as param_group
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

NUM_BLOCKS = 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.block = nn.ModuleList(nn.Linear(4, 4) for _ in range(NUM_BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.block:
            x = block(x)
        return self.head(x)


class Recorder:
    """Says what happened to each group; a gathered result that FSDP2 drops is a reshard, seen at the next event."""

    def __init__(self) -> None:
        self.events: list[dict[str, str]] = []
        self.live: dict[str, object] = {}

    def note(self, moment: str, group: object) -> None:
        for name, other in tuple(self.live.items()):
            if not is_live(other):
                del self.live[name]
                self.events.append({"reshard": name})
        if moment == "unshard" and name_of(group) not in self.live and is_live(group):
            self.live[name_of(group)] = group
            self.events.append({moment: name_of(group)})
        if moment == "reduce":
            self.events += [{"reduce": name_of(group)}, {"read": name_of(group)}]


def is_live(group: object) -> bool:
    return group._all_gather_result is not None or group.is_unsharded


def name_of(group: object) -> str:
    return group._module_fqn or "root"


RECORDER = Recorder()
GROUPS: dict[int, object] = {}                              # by the id of each parameter


def watch() -> None:
    """Have every group tell the recorder."""
    cls = param_group.FSDPParamGroup

    def wrapped(name: str, moment: str) -> None:
        original = getattr(cls, name)

        def told(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            GROUPS.update((id(p), self) for p in self.fsdp_params)
            RECORDER.note(moment, self)
            return result

        setattr(cls, name, told)

    wrapped("unshard", "unshard")
    wrapped("reshard", "reshard")
    reduce = param_group.foreach_reduce

    def told_reduce(params, *args, **kwargs):
        result = reduce(params, *args, **kwargs)
        RECORDER.note("reduce", GROUPS[id(params[0])])
        return result

    param_group.foreach_reduce = told_reduce


def sharded(has_root: bool) -> Model:
    """embed and head apart, the head kept after forward as torchtitan has it; or both in the root's group."""
    model = Model()
    if not has_root:
        fully_shard(model.embed)
    for block in model.block:
        fully_shard(block)
    if not has_root:
        fully_shard(model.head, reshard_after_forward=False)
    return fully_shard(model)


def step(model: Model, x: torch.Tensor) -> None:
    model(x).sum().backward()


def evaluated(model: Model, x: torch.Tensor) -> None:
    step(model, x)
    for _ in range(2):
        with torch.no_grad():
            model(x)
    step(model, x)


def twice_forward(model: Model, x: torch.Tensor) -> None:
    (model(x) + model(2 * x)).sum().backward()


def prefetched(model: Model, x: torch.Tensor) -> None:
    blocks = [model.embed, *model.block, model.head]
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 3])
    step(model, x)


def all_unsharded(model: Model, x: torch.Tensor) -> None:
    for block in model.block:
        block.unshard()
    for block in model.block:
        block.reshard()
    step(model, x)


def main() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    watch()
    orders = {}
    for name, run, has_root, ahead in (
        ("step", step, False, 1), ("root", step, True, 1), ("eval forwards", evaluated, False, 1), ("two forwards before a backward", twice_forward, False, 1),
        ("prefetch depth 2", prefetched, False, 2), ("unshard() of all blocks", all_unsharded, False, 1),
    ):
        model, x = sharded(has_root), torch.ones(2, 4, requires_grad=True)
        step(model, x)
        RECORDER.__init__()
        run(model, x)
        for group in tuple(RECORDER.live.values()):
            RECORDER.note("reshard", group)
        orders[name] = {"schema": "tidec.order/1", "ahead": ahead, "source": f"torch {torch.__version__}", "events": list(RECORDER.events)}
    print(json.dumps(orders))


main()
