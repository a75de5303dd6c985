"""One rank of a job that installs, uninstalls, saves and loads. Each case asserts on its own and gives numbers.

    fsdp_life.py STORE CASE[=FOLDER]...      prints on rank 0 one JSON line a case
"""
from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_model import Trace, batch, codes, net, run_cases, train
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp_module

import tidec
from tidec.errors import TidecError
from tidec.run.capture import groups_of, signature_of
from tidec.run.hooks import NAMES

STOCK = {name: getattr(fsdp_module, name) for name in NAMES}
QUICK = {"poison": True, "deadline_s": 60.0}


def is_stock() -> bool:
    return all(getattr(fsdp_module, name) is STOCK[name] for name in NAMES)


def is_untouched(model) -> bool:
    """Whether no object of FSDP2 has anything of tidec's."""
    return not any("free_unsharded_param" in vars(p) for live in groups_of(model) for p in live.group.fsdp_params)


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """The codes with which a call is refused, and what it says."""
    try:
        call()
    except TidecError as problem:
        return " ".join(d.code for d in problem.diagnostics), str(problem)
    raise AssertionError("it was not refused")


@contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def toggled() -> dict:
    """Stock and tidec in turns, every step of 200."""
    traces = []
    for is_toggled in (False, True):
        traces.append(Trace())
        model = net(blocks=2, width=6, hidden=9)
        optimizer = None
        for step in range(200):
            if is_toggled:
                tidec.uninstall(model) if step % 2 else tidec.install(model, mode=("in_place", "slot_reuse")[step // 2 % 2], **QUICK)
                assert is_stock() == bool(step % 2)
            optimizer = train(model, traces[-1], 1, first=step, optimizer=optimizer)
            if is_toggled and step % 2 == 0:
                assert tidec.report(model).by_plan == 8 and not tidec.report(model).stock
    assert traces[0].seen == traces[1].seen
    assert is_stock() and is_untouched(model)
    return {"seen": len(traces[0].seen)}


def measured() -> tuple[int, int, int]:
    """Open files, memory maps, and KiB of resident memory that is not shared."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    with open("/proc/self/maps") as maps:
        return len(os.listdir("/proc/self/fd")), sum(1 for _ in maps), int(status["RssAnon"].split()[0])


def cycled() -> dict:
    """Installed and uninstalled 50 times; a step of training in some of them."""
    model = net(blocks=2)
    after = []
    for cycle in range(50):
        tidec.install(model, **QUICK)
        assert not is_stock() and not is_untouched(model)
        if cycle % 5 == 0:
            train(model, Trace(), 1, first=cycle)
        tidec.uninstall(model)
        assert is_stock() and is_untouched(model)
        after.append(measured())
    return {"after 10": after[9], "after 50": after[-1]}


def dropped() -> dict:
    """A model that nobody uninstalls goes with its last user, and with it all that was opened for it."""
    before = None
    for _ in range(6):
        model = net(blocks=1)
        tidec.install(model, **QUICK)
        train(model, Trace(), 1)
        seen = weakref.ref(model)
        del model
        gc.collect()
        assert seen() is None
        now = measured()[:2]
        assert before is None or now <= before, (before, now)
        before = now
    assert is_stock()
    return {}


def two_roots() -> dict:
    """Two models in one process; one of them leaves."""
    traces = []
    for is_held in (False, True):
        traces.append(Trace())
        one, other = net(blocks=2), net(blocks=1, width=9, policy=None)
        if is_held:
            tidec.install(one, **QUICK)
            tidec.install(other, **QUICK)
        a, b = train(one, traces[-1], 2), train(other, traces[-1], 2)
        (one(batch(7, 17)).float().square().mean() + other(batch(8, 9)).float().square().mean()).backward()
        for optimizer in (a, b):
            optimizer.step()
            optimizer.zero_grad()
        if is_held:
            assert tidec.report(one).by_plan == 24 and tidec.report(other).by_plan == 15
            tidec.uninstall(one)
            assert not is_stock() and is_untouched(one) and not is_untouched(other)
        train(one, traces[-1], 2, first=3, optimizer=a)
        train(other, traces[-1], 2, first=3, optimizer=b)
        if is_held:
            assert tidec.report(other).by_plan == 25
            tidec.uninstall(other)
            assert is_stock() and is_untouched(other)
    assert traces[0].seen == traces[1].seen
    return {}


def overlapping() -> dict:
    """What is held already is not held twice, and a refusal changes nothing."""
    model = net(blocks=2)
    tidec.install(model, **QUICK)
    of_block = refused(lambda: tidec.install(model.blocks[0], **QUICK))[0]
    again = refused(lambda: tidec.install(model, **QUICK))[0]
    train(model, Trace(), 1)
    tidec.uninstall(model)
    assert is_stock() and is_untouched(model)
    tidec.install(model.blocks[0], **QUICK)
    of_root = refused(lambda: tidec.install(model, **QUICK))[0]
    train(model, Trace(), 1)
    tidec.uninstall(model.blocks[0])
    assert is_stock() and is_untouched(model)
    return {"codes": [of_block, again, of_root, refused(lambda: tidec.uninstall(model))[0], refused(lambda: tidec.report(model))[0]]}


def in_the_middle() -> dict:
    """Uninstalled while groups are unsharded, while an all-gather is under way, and between forward and backward."""
    traces = []
    for is_held in (False, True):
        trace, model = Trace(), net(blocks=3)
        traces.append(trace)

        def install():
            if is_held:
                tidec.install(model, mode="slot_reuse", **QUICK)

        def uninstall():
            if is_held:
                tidec.uninstall(model)
                assert is_stock() and is_untouched(model)

        install()
        optimizer = train(model, trace, 1)
        model.blocks[0].unshard()
        handle = model.blocks[1].unshard(async_op=True)
        uninstall()
        handle.wait()
        trace.see(model.blocks[0].up.weight)
        trace.see(model.blocks[1].up.weight)
        install()
        for block in model.blocks[:2]:
            block.reshard()
        train(model, trace, 1, first=1, optimizer=optimizer)
        loss = model(batch(5, model.width)).float().square().mean()
        uninstall()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = model(batch(6, model.width)).float().square().mean()
        install()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        train(model, trace, 1, first=7, optimizer=optimizer)
        uninstall()
    assert traces[0].seen == traces[1].seen
    return {"seen": len(traces[0].seen)}


def wrapped_by_others() -> dict:
    """Somebody puts a function around ours: what would leave theirs calling ours is refused, and works once they are out."""
    model = net(blocks=1)
    tidec.install(model, **QUICK)
    ours = fsdp_module.foreach_reduce
    fsdp_module.foreach_reduce = lambda *args, **kwargs: ours(*args, **kwargs)
    code, _ = refused(lambda: tidec.uninstall(model))
    train(model, Trace(), 1)
    fsdp_module.foreach_reduce = ours
    tidec.uninstall(model)
    assert is_stock() and is_untouched(model)
    return {"code": code}


def switched() -> dict:
    """TIDEC_DISABLE, TIDEC_REQUIRE and require=True, whether or not a group has to stay stock."""
    found = {}
    model, odd = net(blocks=1), net(blocks=2)
    odd.blocks[0].set_custom_all_gather(type("Mine", (type(groups_of(odd)[0].group._all_gather_comm),), {})())
    with environment(TIDEC_DISABLE="1"):
        made = tidec.install(model, **QUICK)
        assert is_stock() and is_untouched(model)
        train(model, Trace(), 1)
        found["disabled"], found["disabled reasons"] = tidec.report(model).by_plan, [g.reason.split()[0] for g in tidec.report(model).groups]
        tidec.uninstall(model)
        found["disabled and required"], _ = refused(lambda: tidec.install(model, require=True, **QUICK))
    assert len(made.lines) == 2
    with environment(TIDEC_REQUIRE="1"):
        tidec.install(model, **QUICK)
        tidec.uninstall(model)
        found["required"], _ = refused(lambda: tidec.install(odd, **QUICK))
    found["required by argument"], _ = refused(lambda: tidec.install(odd, require=True, **QUICK))
    assert is_stock() and is_untouched(model) and is_untouched(odd)
    tidec.install(odd, **QUICK)
    train(odd, Trace(), 1)
    found["otherwise"] = codes(tidec.report(odd).stock)
    tidec.uninstall(odd)
    with environment(TIDEC_DISABLE="yes"):
        found["misspelt"], _ = refused(lambda: tidec.install(model, **QUICK))
    return found


def compiled(topo: str, out: str, model, **knobs: int) -> str:
    """A bundle of a model's groups as they are, so without plans of kept gradients, that rank 0 makes in the job's folder."""
    if dist.get_rank() == 0:
        tidec.compile(topo, replace(signature_of(model), is_installed=False), out=out, knobs=knobs)
    dist.barrier()
    return out


def given_plans() -> dict:
    """Bundles that are given: two emulated nodes of two lanes and knobs; another size of job; without one of the groups; none at all."""
    found = {}
    stock, ours, model = Trace(), Trace(), net(blocks=2)
    train(net(blocks=2), stock, 3)
    bundle = compiled("2x2", "two-by-two", model, W=2, k=1, n_stg=2)
    tidec.install(model, bundle, **QUICK)
    train(model, ours, 3)
    found["2x2"] = tidec.report(model).by_plan
    for is_reduced in (False, True):
        model.set_requires_gradient_sync(is_reduced)
        model(batch(4, model.width)).float().square().mean().backward()
    model.zero_grad()
    found["kept"] = codes(tidec.report(model).stock)
    tidec.uninstall(model)
    assert stock.seen == ours.seen
    for name, path in (("other size", compiled("1x2", "one-by-two", model)), ("absent", "nowhere")):
        tidec.install(model, path, **QUICK)
        found[name] = sorted({g.reason.split()[0] for g in tidec.report(model).groups})
        assert is_stock() and is_untouched(model)
        tidec.uninstall(model)
        found[f"{name}, required"] = sorted(set(refused(lambda: tidec.install(model, path, require=True, **QUICK))[0].split()))
    other = net(blocks=2, is_frozen=True)
    tidec.install(other, bundle, **QUICK)
    found["partly"] = [g.reason.split()[0] if g.reason else "" for g in tidec.report(other).groups]
    train(other, Trace(), 1)
    tidec.uninstall(other)
    # Only one rank is given a bundle.
    found["one rank"], _ = refused(lambda: tidec.install(model, bundle if dist.get_rank() == 1 else None, **QUICK))
    assert is_stock() and is_untouched(model)
    return found


def saved(folder: str) -> dict:
    """Six steps without a stop; after three of them the state is saved in both ways."""
    model, trace = net(blocks=2), Trace()
    tidec.install(model, **QUICK)
    optimizer = train(model, Trace(), 3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/{dist.get_rank()}.pt")
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/dcp")
    train(model, trace, 3, first=3, optimizer=optimizer)
    assert not tidec.report(model).stock
    tidec.uninstall(model)
    return {"trace": trace.seen}


def resumed(is_early: bool, is_distributed: bool = False, is_assigned: bool = False) -> Callable[[str], dict]:
    def case(folder: str) -> dict:
        torch.manual_seed(99)
        model, trace = net(blocks=2), Trace()
        with torch.no_grad():
            for p in model.parameters():
                p.to_local().zero_()
        tidec.install(model, **QUICK)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if not is_early:
            with torch.no_grad():
                model(batch(0, model.width))
        state = torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=False)
        if is_distributed:
            of_model = model.state_dict()
            dcp.load({"model": of_model}, checkpoint_id=f"{folder}/dcp")
            model.load_state_dict(of_model)
        else:
            model.load_state_dict(state["model"], assign=is_assigned)
        if is_assigned:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        optimizer.load_state_dict(state["optimizer"])
        train(model, trace, 3, first=3, optimizer=optimizer)
        assert tidec.report(model).by_plan >= 24 and not tidec.report(model).stock
        tidec.uninstall(model)
        return {"trace": trace.seen}

    return case


CASES: dict[str, Callable[..., dict]] = {
    "toggled": toggled, "cycled": cycled, "dropped": dropped, "two roots": two_roots, "overlapping": overlapping, "in the middle": in_the_middle,
    "wrapped by others": wrapped_by_others, "switched": switched, "given plans": given_plans, "saved": saved, "resumed before": resumed(True),
    "resumed after": resumed(False), "resumed from dcp before": resumed(True, True), "resumed from dcp after": resumed(False, True),
    "resumed by assigning": resumed(False, is_assigned=True),
}


def run(case: str) -> dict:
    name, _, folder = case.partition("=")
    return CASES[name](*([folder] if folder else []))


if __name__ == "__main__":
    sys.exit(run_cases(run))
