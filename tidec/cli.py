"""The command line: which command is run, and how its answer or an error leaves the process.

What can be asked stands in `commands/pages.py`, which loads no command; nothing of a command is loaded before it is run. Everything that depends on the
environment is read here.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidec.commands.pages import parser
from tidec.errors import Diagnostic, Exit, Level, TidecError

if TYPE_CHECKING:
    import argparse

    from tidec.cache.key import Cache
    from tidec.commands.answer import Answer

# The environment variables of our own that tidec reads, in this file or in the two others that may (README lists them too).
VARIABLES = ("TIDEC_CACHE_DIR", "TIDEC_CACHE_PATH", "TIDEC_CUDA_ARCH", "TIDEC_DISABLE", "TIDEC_NO_BUILD", "TIDEC_REQUIRE")

# The package of each optional dependency, and the extra that brings it.
_EXTRAS = {"z3": ("z3-solver", "compile"), "networkx": ("networkx", "compile"), "jinja2": ("jinja2", "compile"), "pybind11": ("pybind11", "compile"),
           "numpy": ("numpy", "run"), "torch": ("torch", "fsdp")}

_INTERRUPTED, _BROKEN_PIPE = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `None` = the arguments of this process. Returns the exit code and prints everything."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _make_printable()
    try:
        code = _run(arguments, os.environ)
        _flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return _BROKEN_PIPE
    except _Unwritable as error:
        _forget_stdout()
        print(Diagnostic("E003", "stdout cannot be written", reason=str(error), help="give the output another place"), file=sys.stderr)
        return Exit.ENVIRONMENT.value


class _Unwritable(Exception):
    """Stdout takes no more, and is no pipe."""


def _run(arguments: list[str], environment: Mapping[str, str]) -> int:
    command = next((a for a in arguments if a in COMMANDS), "usage")
    try:
        _check_command(arguments)
        try:
            # argparse would take only what stands right behind the script for its arguments.
            cut = arguments.index("--") if command == "capture" and "--" in arguments else len(arguments)
            options, unknown = parser().parse_known_args(arguments[:cut])
            options.rest = tuple(arguments[cut + 1:])
        except SystemExit as stop:      # argparse has printed a help page or the version
            return int(stop.code or 0)
        if unknown:
            help = f"arguments of the script go behind --, last of all: -- {' '.join(unknown)}" if command == "capture" else "run tidec --help"
            raise TidecError(Diagnostic("P001", f"unrecognized arguments: {' '.join(unknown)}", help=help))
        _warn_of_unknown(environment)
        answer = COMMANDS[options.command](options, environment)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in _EXTRAS:
            raise
        return _stop(command, _missing_extra(missing), arguments)
    except TidecError as error:
        return _stop(command, error, arguments)
    for note in answer.notes:
        print(note, file=sys.stderr)
    _tell(answer.to_json(command) if options.json else answer.text)
    return answer.exit.value


def _stop(command: str, error: TidecError, arguments: list[str]) -> int:
    print(error, file=sys.stderr)
    if "--json" in arguments:
        from tidec.commands.answer import error_json

        _tell(error_json(command, error))
    return error.exit.value


def _tell(text: str) -> None:
    try:
        print(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _Unwritable(error.strerror) from error
    _flush()


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _Unwritable(error.strerror) from error


def _forget_stdout() -> None:
    """Send what Python still holds for stdout nowhere, or it complains at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_command(arguments: list[str]) -> None:
    """Say it in our own words where no command is given, or none that exists. Raises P001."""
    help = f"one of: {', '.join(COMMANDS)};  tidec --help"
    if not arguments:
        raise TidecError(Diagnostic("P001", "no command is given", help=help))
    first = arguments[0]
    if first.startswith("-") and first not in ("-h", "--help", "--version"):
        raise TidecError(Diagnostic("P001", f'the command comes before "{first}"', help=help))
    if not first.startswith("-") and first not in COMMANDS:
        raise TidecError(Diagnostic("P001", f'there is no command "{first}"', help=help))


def _make_printable() -> None:
    """Let every text be printed: file names that are no UTF-8 as their bytes, and what a narrow encoding lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            is_utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    for name in sorted(environment):
        if name.startswith("TIDEC_") and name not in VARIABLES:
            print(Diagnostic("P014", f"the environment variable {name} means nothing to tidec", help=f"the ones it reads are {', '.join(VARIABLES)}",
                             level=Level.WARNING), file=sys.stderr)


def _missing_extra(module: str) -> TidecError:
    package, extra = _EXTRAS[module]
    return TidecError(Diagnostic("E001", f"this command needs the Python package {package}, which is not installed",
                                 reason=f"it comes with the extra tidec[{extra}]", help=f"pip install 'tidec[{extra}]', or in a checkout: pip install -e '.[{extra}]'"))


_MODE = "in_place"


def _compile(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.compile import run

    return run(topo=options.topo, group=options.group, settings=tuple(options.set), capability=options.capability,
               mode=_MODE if options.mode is None else options.mode, budget=options.budget, target=options.target, is_stock_ok=options.stock_ok, is_echoed=not options.no_echo, out=options.o, is_forced=options.force, dump=options.dump,
               cache=None if options.no_cache else _cache(environment), order=options.order)


def _prove(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.prove import run

    return run(schedule=options.schedule, lanes=options.lanes, settings=tuple(options.set), capability=options.capability,
               is_sweep=options.paper_sweep, cache=None if options.no_cache else _cache(environment), step=options.step, mode=options.mode)


def _verify(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.verify import run

    return run(bundle=options.bundle, is_proved_again=options.prove)


def _explain(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.explain import run

    return run(what=options.what, topo=options.topo, group=options.group, settings=tuple(options.set), capability=options.capability, mode=options.mode,
               budget=options.budget, order=options.order)


def _why_not(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.why_not import run

    return run(topo=options.topo, group=options.group)


def _run_command(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.run import run

    return run(bundle=options.bundle, topo=options.topo, group=options.group, settings=tuple(options.set), capability=options.capability, target=options.target,
               calls=options.calls, seed=options.seed, seeds=options.seeds, data=options.data, alpha=options.alpha, accumulate=options.accumulate,
               is_poisoned=options.poison, deadline=options.deadline, cache=_cache(environment), environment=environment, mode=options.mode)


def _bench(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.bench import run

    return run(bundle=options.bundle, topo=options.topo, group=options.group, equal=options.equal, unequal=options.unequal, settings=tuple(options.set),
               capability=options.capability, mode=options.mode, target=options.target, collective=options.collective, groups=options.groups, ctas=options.ctas,
               calls=options.calls, rounds=options.rounds, seed=options.seed, deadline=options.deadline, out=options.o, is_forced=options.force,
               cache=_cache(environment), environment=environment)


def _capture(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.capture import run

    return run(script=options.script, args=options.rest, out=options.o, world=options.world, deadline=options.deadline, is_forced=options.force,
               environment=environment)


def _doctor(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.doctor import run

    return run(target=options.target)


def _cache_command(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands import cache as command

    cache = _cache(environment)
    if options.action == "ls":
        return command.run_ls(cache)
    if options.action == "path":
        return command.run_path(cache, options.digest)
    if options.action == "verify":
        return command.run_verify(cache, tuple(options.digest))
    if options.action == "export":
        return command.run_export(cache, tuple(options.digest), out=options.o, has_lib=not options.no_lib, is_forced=options.force)
    if options.action == "import":
        return command.run_import(cache, options.file)
    return command.run_gc(cache, max_gib=options.max_gib, older_than=options.older_than, is_dry=options.dry_run)


def _cache(environment: Mapping[str, str]) -> Cache:
    from tidec.cache.key import cache_of

    cache, notes = cache_of(environment)
    for note in notes:
        print(note, file=sys.stderr)
    return cache


COMMANDS = {"compile": _compile, "prove": _prove, "verify": _verify, "explain": _explain, "why-not": _why_not, "run": _run_command, "bench": _bench,
            "cache": _cache_command, "capture": _capture, "doctor": _doctor}
