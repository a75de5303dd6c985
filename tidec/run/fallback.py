"""Why a group, a collective of it, or one call keeps FSDP2's own collective: every reason, as data with a code.

Three kinds. What the planner cannot plan is P012, the same as `tidec why-not` says of the group's file. F1xx: what else is so with a group as long as it
lives. F2xx: what is so with one call. F3xx: what is so with the whole job. All are decided from what is equal on every rank, never by timing.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from tidec.errors import Diagnostic, Level, TidecError
from tidec.inputs.ask import SUM_IN_FP32, Collective, stock_cause
from tidec.inputs.document import quoted
from tidec.run.capture import ODD, LiveGroup, read_group
from tidec.run.versions import check_reads, own_function

_BOTH = tuple(Collective)
_GATHER, _REDUCE = (Collective.ALL_GATHER,), (Collective.REDUCE_SCATTER,)

# Where the collectives of a target find their tensors.
_DEVICES = {"host": "cpu", "nccl": "cuda"}
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something stays stock. reason: no capital, no full stop.  help: "" where nothing is known.  collectives: which of a group's."""

    code: str
    reason: str
    help: str = ""
    collectives: tuple[Collective, ...] = _BOTH

    def __str__(self) -> str:
        return f"{self.code} {self.reason}"


# code: what it says, with the words of the case in braces; what to do about it; which collectives it concerns.
REASONS: dict[str, tuple[str, str, tuple[Collective, ...]]] = {
    "F101": ("it is {how}, so there is nothing to gather", "", _BOTH),
    "F102": ("parameter {parameter} is a DTensor before it is sharded (tensor or expert parallel)", "", _BOTH),
    "F103": ("parameter {parameter} has a step of its own before the all-gather (fsdp_pre_all_gather)", "", _BOTH),
    "F104": ("parameter {parameter} is offloaded to the CPU", "leave offload_policy out", _BOTH),
    "F105": ("it is resharded to {ranks} ranks after forward, and gathered from those in backward", "call fully_shard with reshard_after_forward=True", _GATHER),
    "F106": ("its all-gather goes through an object of the user's own, {type}", "take out set_custom_all_gather and the like, or install before it", _GATHER),
    "F107": ("its reduce-scatter goes through an object of the user's own, {type}", "take out set_custom_reduce_scatter and the like, or install before it", _REDUCE),
    "F108": ("its parameters are on {device}, and target {target} moves those of {wanted}", "", _BOTH),
    "F109": ("parameter {parameter} is gathered in {found}, where the policy of its module says {wanted}", "", _BOTH),
    "F110": ("FSDP2's object is not as expected: {what}", "tell us the versions of torch and tidec", _BOTH),
    "F201": ("no landing is free: {held}", "", _GATHER),
    "F202": ("the gradient of {parameter} is {found}, and the plan reads {wanted}; gradients that were kept over several backward passes are in fp32",
             "install without plans=, or give a bundle that has the group in fp32 too; or reduce after every backward pass: set_requires_gradient_sync(True)", _REDUCE),
    "F203": ("gradients are summed in {found}; tidec sums in fp32", SUM_IN_FP32, _REDUCE),
    "F204": ("{parameter} is not what it was at install: {what}", "call tidec.install after the model has its final shape", _BOTH),
    "F205": ("the divide factor is {factor}, no finite number above zero", "", _REDUCE),
    "F206": ("the call is for another process group than at install", "", _BOTH),
    "F207": ("compiled autograd is on, which traces what it calls", "leave torch._dynamo.config.compiled_autograd off", _BOTH),
    "F301": ("TIDEC_DISABLE=1", "", _BOTH),
    "F302": ("there is no plan for it{why}", "tidec compile makes one; give its bundle: tidec.install(model, plans=PATH)", _BOTH),
    "F303": ("its ranks are on several machines, and target {target} shares memory", "", _BOTH),
    "F304": ("the plans are for {found}, and {wanted} shard the group", "compile for the topology of the job: tidec compile --topo", _BOTH),
    "F305": ("torch {version} is not what tidec knows: {what}", "pip install a version of torch that tidec knows; see tidec/run/versions.py", _BOTH),
    "F306": ("rank {rank} cannot run the plans: {what}", "", _BOTH),
    "F308": ("its process group cannot carry what ranks tell each other: {what}", "use a backend that gathers objects, such as gloo", _BOTH),
    "F309": ("it was sharded after tidec.install; call install last", "call tidec.install after the last fully_shard", _BOTH),
}


def because(code: str, **words: object) -> Reason:
    """A reason of the table, with the words of its case."""
    text, help, collectives = REASONS[code]
    return Reason(code, text.format(**words), help, collectives)


def target_of(live: LiveGroup, asked: str) -> str:
    """The target that moves a group. asked: a target, or "auto": that of its device, and the host's where no target is."""
    device = getattr(getattr(live.group, "device", None), "type", "")
    return asked if asked != AUTO else next((target for target, of in _DEVICES.items() if of == device), "host")


def why_stock(live: LiveGroup, *, target: str = "host") -> tuple[Reason, ...]:
    """Every reason for which a group, or a collective of it, stays stock as long as it lives; () = both may run by plans.

    Never raises: what cannot be read of an object is a reason too (F110).
    """
    assert target in _DEVICES, target
    if live.odd:
        return (because("F110", what=live.odd),)
    found: list[Reason] = []
    for look in _LOOKS:
        try:
            found += look(live, target)
        except TidecError as problem:
            found.append(Reason("P012", problem.diagnostics[0].sentence, problem.diagnostics[0].help))
        except ODD as problem:
            found.append(because("F110", what=f"{type(problem).__name__}: {problem}"))
    return tuple(dict.fromkeys(found))


def of_collective(reasons: Sequence[Reason], collective: Collective) -> tuple[Reason, ...]:
    """Those that concern a collective."""
    return tuple(r for r in reasons if collective in r.collectives)


def line(name: str, reasons: Sequence[Reason], *, plans: Mapping[Collective, str], target: str) -> str:
    """What is printed of a group at install. plans: the digest of the plan that runs each collective; those it lacks are stock, for the reasons that concern them."""
    if not plans:
        return f"tidec: group {quoted(name)} stock: {_listed(reasons)}"
    parts = [f"{_spelt(c)} {target} plan {plans[c][:12]}" if c in plans else f"{_spelt(c)} stock: {_listed(of_collective(reasons, c))}" for c in Collective]
    return f"tidec: group {quoted(name)} active ({', '.join(parts)})"


def require(stays: Mapping[str, Sequence[Reason]]) -> None:
    """Let no group stay stock. stays: the reasons of each group, by name. Raises all of them, by their codes."""
    found = [_diagnostic(name, reason) for name, reasons in stays.items() for reason in reasons]
    if found:
        raise TidecError(*found)


def later_line(name: str, collective: Collective, reason: Reason) -> str:
    """What is printed of a group whose calls go stock for a reason that was not known at install."""
    return f"tidec: group {quoted(name)} {_spelt(collective)} stock for now: {reason}"


def refusal(name: str, collective: Collective, reason: Reason) -> TidecError:
    """What a call raises that would go stock, where none may."""
    return TidecError(replace(_diagnostic(name, reason), sentence=f"the {_spelt(collective)} of group {quoted(name)} would be stock, and is not begun"))


def _diagnostic(name: str, reason: Reason) -> Diagnostic:
    what = " and ".join(map(_spelt, reason.collectives))
    return Diagnostic(reason.code, f"group {quoted(name)} keeps the stock {what}", reason=reason.reason, level=Level.ERROR,
                      help=reason.help or "without require=True and TIDEC_REQUIRE it runs as FSDP2 made it")


def _listed(reasons: Sequence[Reason]) -> str:
    return "; ".join(map(str, reasons))


def _spelt(collective: Collective) -> str:
    return collective.value.replace("_", "-")


# ---- what is looked at

def _mesh(live: LiveGroup, target: str) -> Iterator[Reason]:
    process_group = getattr(live.group.mesh_info, "shard_process_group", None)
    if process_group is None:
        yield because("F101", how="replicated, not sharded")
    elif process_group.size() == 1:
        yield because("F101", how="sharded over one rank")
    post = live.group.post_forward_mesh_info
    if live.group._use_post_forward_mesh:
        yield because("F105", ranks=post.shard_mesh_size)


def _plans(live: LiveGroup, target: str) -> Iterator[Reason]:
    group = read_group(live)
    causes = [(c, stock_cause(group, c)) for c in Collective]
    for cause in dict.fromkeys(cause for _, cause in causes if cause is not None):
        yield Reason("P012", cause.reason, cause.help, tuple(c for c, other in causes if other == cause))


def _params(live: LiveGroup, target: str) -> Iterator[Reason]:
    """The first parameter of each kind."""
    named = tuple(zip(map(quoted, live.params), live.group.fsdp_params, strict=True))
    for code, is_so in (("F102", lambda p: p.is_dtensor), ("F103", lambda p: hasattr(p._sharded_local_tensor, "fsdp_pre_all_gather")),
                        ("F104", lambda p: p.offload_to_cpu)):
        yield from (because(code, parameter=name) for name in [name for name, p in named if is_so(p)][:1])


def _types(live: LiveGroup, target: str) -> Iterator[Reason]:
    """From torch 2.15 on a parameter may be gathered in another type than the policy says; it is known from the first forward pass on."""
    asked = live.group.mp_policy.param_dtype
    for name, p in zip(live.params, live.group.fsdp_params, strict=True):
        stored = p.sharded_param.dtype
        found = getattr(p, "param_dtype", None) or stored
        if hasattr(p, "param_dtype") and found != (asked or stored):
            yield because("F109", parameter=quoted(name), found=_short(found), wanted=_short(asked or stored))
            return


def _comms(live: LiveGroup, target: str) -> Iterator[Reason]:
    for code, comm, stock in (("F106", live.group._all_gather_comm, DefaultAllGather), ("F107", live.group._reduce_scatter_comm, DefaultReduceScatter)):
        if type(comm) is not stock:
            yield because(code, type=type(comm).__name__)
    for code, slot in (("F106", "_all_gather_output_fn"), ("F107", "_prepare_reduce_scatter_inputs")):
        own = own_function(slot, getattr(live.group, slot, None))
        if own:
            yield because(code, type=own)


def _reads(live: LiveGroup, target: str) -> Iterator[Reason]:
    """What calls read is looked at here: one that found it missing would have begun by then."""
    if getattr(live.group.mesh_info, "shard_process_group", None) is not None:
        check_reads(live.group)
    return iter(())


def _device(live: LiveGroup, target: str) -> Iterator[Reason]:
    device = live.group.device.type
    if device != _DEVICES[target]:
        yield because("F108", device=device, target=target, wanted=_DEVICES[target])


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


_LOOKS: tuple[Callable[[LiveGroup, str], Iterator[Reason]], ...] = (_plans, _mesh, _params, _types, _comms, _device, _reads)
