"""One rank of a job that installs on FSDP2's own functions under the signatures of other torch versions, and under such that no version has.

    fsdp_versions.py STORE CASE...      prints on rank 0 one JSON line a case
"""
from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from fsdp_life import QUICK, is_stock, is_untouched
from fsdp_model import Trace, codes, net, run_cases, train
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp_module

import tidec
from tidec.run.capture import groups_of
from tidec.run.fsdp import HOOKS
from tidec.run.hooks import NAMES
from tidec.run.versions import check

RECORD = json.loads((Path(__file__).parent / "signatures.json").read_text())
REAL = {name: getattr(fsdp_module, name) for name in NAMES}
FSDPParam = fsdp_module.FSDPParam
TAKEN = tuple(inspect.signature(REAL["foreach_reduce"]).parameters)
STEPS = 3


@contextmanager
def having(owner: object, **values: object) -> Iterator[None]:
    """Attributes that are others for a while. NOTE: what others have put in their place by then goes too."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def spelt(name: str, params: list[str], returned: str | None, body: Callable[[dict], object]) -> Callable:
    """A function with recorded arguments, which it gives to `body` by their names. Those that a version has defaults for have None."""
    texts, has_default = [], False
    for p in params:
        has_default = has_default or p in ("*", "async_op", "force_sum_reduction_for_comms", "force_recreate")
        texts.append(f"{p}=None" if has_default and p != "*" else p)
    made: dict[str, Callable] = {"body": body}
    given = ", ".join(f"{p}={p}" for p in params if p != "*")
    text = f"def {name}({', '.join(texts)}){f' -> {returned!r}' if returned else ''}:\n    return body(dict({given}))"
    exec(compile(text, name, "exec", dont_inherit=True), made)
    return made[name]


def stood_in(release: str) -> dict[str, Callable]:
    """The three functions as a release has them, around those of this torch."""
    params, returned = RECORD["foreach_reduce"][release]
    is_stream_returned = returned.count(",") == 6

    def reduce(given: dict) -> object:
        given = {"orig_dtype": torch.float32, **given, "force_sum_reduction_for_comms": bool(given["force_sum_reduction_for_comms"])}
        found = REAL["foreach_reduce"](*(given[name] for name in TAKEN))
        return found if is_stream_returned else found[:2] + found[3:]

    bodies = {"foreach_all_gather": lambda given: REAL["foreach_all_gather"](*given.values()), "foreach_reduce": reduce,
              "foreach_all_gather_copy_out": lambda given: REAL["foreach_all_gather_copy_out"](*list(given.values())[:3])}
    return {name: spelt(name, *RECORD[name][release], body) for name, body in bodies.items()}


def called_as(release: str, ours: dict[str, Callable]) -> dict[str, Callable]:
    """What the callers of this torch call, so that `ours` is called, and gives back, as in that release."""
    params, returned = RECORD["foreach_reduce"][release]
    is_named = "*" in params
    num_returned = returned.count(",") + 1

    def reduce(*args: object) -> object:
        given = dict(zip(TAKEN, args, strict=True))
        found = ours["foreach_reduce"](*(given[p] for p in params if p in given), **({"prepare_reduce_scatter_inputs": None} if is_named else {}))
        assert len(found) == num_returned
        return found if num_returned == 7 else (*found[:2], given["reduce_scatter_stream"], *found[2:])

    def copy_out(result: object, params: object, group: object) -> None:
        ours["foreach_all_gather_copy_out"](result, params, group, **({"all_gather_output_fn": None} if is_named else {}))

    return {"foreach_all_gather": ours["foreach_all_gather"], "foreach_all_gather_copy_out": copy_out, "foreach_reduce": reduce}


def as_recorded() -> dict:
    """Installed and trained under the recorded signatures of every other torch than 2.13, the one of the tests."""
    stock, found = Trace(), {}
    train(net(blocks=2), stock, STEPS)
    init = FSDPParam.init_all_gather_outputs
    for release in RECORD["foreach_reduce"]:
        if release.startswith("2.13."):
            continue
        stands = stood_in(release)
        outputs = spelt("init_all_gather_outputs", *RECORD["FSDPParam.init_all_gather_outputs"][release], lambda given: init(*list(given.values())[:5]))
        model, trace = net(blocks=2), Trace()
        with having(fsdp_module, **stands), having(FSDPParam, init_all_gather_outputs=outputs):
            fit = check(version=release, storage=type("UntypedStorage", (), {}) if release.startswith("2.11.") else torch.UntypedStorage)
            with having(HOOKS, _fit=fit):
                tidec.install(model, require=True, **QUICK)
                ours = {name: getattr(fsdp_module, name) for name in NAMES}
                assert not any(ours[name] is stands[name] for name in NAMES)
                with having(fsdp_module, **called_as(release, ours)):
                    train(model, trace, STEPS)
                report = tidec.report(model)
                tidec.uninstall(model)
                assert all(getattr(fsdp_module, name) is stands[name] for name in NAMES) and is_untouched(model)
        found[release] = {"is_equal": trace.seen == stock.seen, "by_plan": report.by_plan, "stock": report.stock, "returned": fit.num_reduced, "lent by torch": fit.has_loan}
    return found


def refused(owner: object, name: str, other: object) -> list[str]:
    """Installed where something of FSDP2 is another than any version's: stock goes on with its bits. Gives the reasons of its groups."""
    stock, ours, model = Trace(), Trace(), net(blocks=2)
    train(model, stock, STEPS - 1, first=1, optimizer=train(model, stock, 1))
    model = net(blocks=2)
    optimizer = train(model, ours, 1)
    with having(HOOKS, _fit=None), having(owner, **{name: other}):
        before = {name: getattr(fsdp_module, name) for name in NAMES}
        tidec.install(model, **QUICK)
        assert is_untouched(model) and before == {name: getattr(fsdp_module, name) for name in NAMES}
        train(model, ours, STEPS - 1, first=1, optimizer=optimizer)
        report = tidec.report(model)
        tidec.uninstall(model)
        assert is_untouched(model) and before == {name: getattr(fsdp_module, name) for name in NAMES}
    assert is_stock() and report.by_plan == 0
    assert stock.seen == ours.seen
    return sorted({g.reason for g in report.groups})


def unexpected() -> dict:
    """ROCm/pytorch#3501 (row 83): a function with an argument more, one that is missing, and an attribute of a group that is missing."""
    gather = REAL["foreach_all_gather"]

    def foreach_all_gather(fsdp_params, group, async_op, all_gather_copy_in_stream, all_gather_stream, device, all_gather_comm, layout=None):
        return gather(fsdp_params, group, async_op, all_gather_copy_in_stream, all_gather_stream, device, all_gather_comm)

    found = {"more": refused(fsdp_module, "foreach_all_gather", foreach_all_gather), "missing": refused(FSDPParam, "reset_sharded_param", None)}
    model = net(blocks=2)
    group = groups_of(model)[0].group
    kept = group.__dict__.pop("_reduce_scatter_comm")
    tidec.install(model, **QUICK)
    group._reduce_scatter_comm = kept
    train(model, Trace(), 1)
    report = tidec.report(model)
    tidec.uninstall(model)
    assert is_stock() and is_untouched(model)
    return {**found, "attribute": [g.reason for g in report.groups], "by_plan": report.by_plan, "stock": codes(report.stock)}


if __name__ == "__main__":
    sys.exit(run_cases(lambda case: {"as recorded": as_recorded, "unexpected": unexpected}[case]()))
