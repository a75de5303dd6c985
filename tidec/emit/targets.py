"""What a plan can be built for: one row a target."""
from __future__ import annotations

from dataclasses import dataclass

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import quoted


@dataclass(frozen=True, slots=True)
class Target:
    """A target: its Runner, and what a machine needs for it.

    runner: the header that gives tidec::Target, "" where nothing is emitted for it.  is_built: whether this version has it.
    folders: of runtime/, what its library is compiled from.  is_cuda: nvcc compiles it.  is_virtual: its ranks share one GPU, so that no switch sums.
    """

    name: str
    runner: str
    needs: str
    is_built: bool
    folders: tuple[str, ...] = ()
    is_cuda: bool = False
    is_virtual: bool = False

    @property
    def has_library(self) -> bool:
        """Whether a bundle gets a library for it."""
        return bool(self.folders)


TARGETS = (
    Target("python", "", "numpy", True),
    Target("echo", "tidec/echo.hpp", "g++", True),
    Target("host", "host/target.hpp", "g++ and numpy", True, ("host",)),
    Target("loopback", "loopback/target.hpp", "one GPU, nvcc, g++ and numpy", True, ("host", "cuda", "loopback"), is_cuda=True, is_virtual=True),
    Target("nccl", "nccl/target.hpp", "a GPU a rank, NCCL 2.31 for several nodes, nvcc, g++ and numpy", True, ("cuda", "nccl"), is_cuda=True),
)


def target(name: str) -> Target:
    """The target of that name. Raises P001 where there is none, E004 where this version does not have it."""
    for row in TARGETS:
        if row.name == name:
            if row.is_built:
                return row
            raise TidecError(Diagnostic("E004", f"target {name} is not built yet", reason=f"it will need {row.needs}",
                                        help="leave --target out: the bundle holds the source of every target"))
    raise TidecError(Diagnostic("P001", f"there is no target {quoted(name)}", help=f"one of: {', '.join(row.name for row in TARGETS)}"))
