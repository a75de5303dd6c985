"""One rank of a job that measures how far from stock's numbers those of plans are where sums are not exact.

    fsdp_close.py STORE CASE...      prints on rank 0 one JSON line a case
"""
from __future__ import annotations

import sys
from types import SimpleNamespace

import fsdp_model
import torch
from fsdp_model import MIXED, batch, net, run_cases

import tidec
from tidec.inputs.ask import Mode


def thirds() -> dict:
    """By how many units in the last place gradients of one step differ from stock's, at most."""
    gradients = []
    for is_stock in (True, False):
        model = net(blocks=2)
        if not is_stock:
            tidec.install(model)
        model(batch(0, model.width)).float().square().mean().backward()
        gradients.append([p.grad.to_local().clone() for p in model.parameters()])
        if not is_stock:
            assert tidec.report(model).by_plan == 8 and not tidec.report(model).stock
            tidec.uninstall(model)
    units = [(a.view(torch.int32) - b.view(torch.int32)).abs().max().item() for a, b in zip(*gradients) if a.numel()]
    return {"units": max(units)}


def unrounded() -> dict:
    """By how much losses and parameters differ from stock's at most over 20 steps with gradients as they are, relative to stock's, by policy and mode."""
    found, rounded = {}, fsdp_model.Rounded
    fsdp_model.Rounded = SimpleNamespace(apply=lambda x: x)
    try:
        for name, policy in (("fp32", None), ("bf16", MIXED)):
            losses, params = {}, {}
            for mode in ("stock", *(m.value for m in Mode)):
                model = net(policy=policy)
                if mode != "stock":
                    tidec.install(model, mode=mode, require=True, poison=True)
                optimizer, losses[mode] = torch.optim.AdamW(model.parameters(), lr=1e-2), []
                for step in range(20):
                    loss = model(batch(step, model.width)).float().square().mean()
                    losses[mode].append(loss.item())
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                params[mode] = torch.cat([p.to_local().reshape(-1) for p in model.parameters()]).clone()
                if mode != "stock":
                    assert tidec.report(model).by_plan == 20 * 14 and not tidec.report(model).stock
                    tidec.uninstall(model)
                    found[f"{name} {mode}"] = {"losses": max(abs(a - b) / abs(a) for a, b in zip(losses["stock"], losses[mode])),
                                               "params": ((params["stock"] - params[mode]).abs().max() / params["stock"].abs().max()).item()}
            found[f"{name} modes are equal"] = len({tuple(values) for mode, values in losses.items() if mode != "stock"}) == 1
    finally:
        fsdp_model.Rounded = rounded
    return found


if __name__ == "__main__":
    sys.exit(run_cases(lambda case: {"thirds": thirds, "unrounded": unrounded}[case]()))
