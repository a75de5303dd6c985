"""The command line: what can be asked, and how an answer or an error leaves the process.

Commands stand in `commands/`, and nothing of them is loaded before one is run. Everything that depends on the environment is read here.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from tidec import __version__
from tidec.errors import Diagnostic, Exit, Level, TidecError

if TYPE_CHECKING:
    from tidec.cache.key import Cache
    from tidec.commands.answer import Answer

# The environment variables of our own that tidec reads, in this file or in the two others that may (README lists them too).
VARIABLES = ("TIDEC_CACHE_DIR", "TIDEC_CACHE_PATH", "TIDEC_CUDA_ARCH", "TIDEC_DISABLE", "TIDEC_NO_BUILD", "TIDEC_REQUIRE")

# The package of each optional dependency, and the extra that brings it.
_EXTRAS = {"z3": ("z3-solver", "compile"), "networkx": ("networkx", "compile"), "jinja2": ("jinja2", "compile"), "pybind11": ("pybind11", "compile"),
           "numpy": ("numpy", "run"), "torch": ("torch", "fsdp")}

_INTERRUPTED, _BROKEN_PIPE = 130, 141

_KNOB_HELP = ("set a knob: W, k, n_stg, n_part, n_out, chunk_bytes, chunks, stripes, ctas_sum, ctas_land or cast (not built yet: pacing); "
              "repeat for several; tidec explain W says what one is")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are diagnostics."""

    def error(self, message: str) -> NoReturn:
        raise TidecError(Diagnostic("P001", message, help=f"run {self.prog} --help"))


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
            options = _parser().parse_args(arguments[:cut])
            options.rest = tuple(arguments[cut + 1:])
        except SystemExit as stop:      # argparse has printed a help page or the version
            return int(stop.code or 0)
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


# ---- what can be asked

def _parser() -> argparse.ArgumentParser:
    parser = _new_parser("tidec", "A schedule compiler for FSDP2 communication: plans that are proved before they run.", _EPILOG)
    parser.add_argument("--version", action="version", version=f"tidec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, (brief, add) in _PAGES.items():
        page = commands.add_parser(name, help=brief, description=brief[0].upper() + brief[1:] + ".", allow_abbrev=False, formatter_class=_wide)
        add(page)
        page.add_argument("--json", action="store_true", help="print one JSON object")
        page.add_argument("--version", action="version", version=f"tidec {__version__}")
    return parser


def _new_parser(prog: str, description: str, epilog: str) -> _Parser:
    return _Parser(prog=prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=_wide)


def _wide(prog: str) -> argparse.HelpFormatter:
    # The width is fixed, so that a page reads the same everywhere.
    return argparse.RawDescriptionHelpFormatter(prog, width=110, max_help_position=28)


_MODE = "in_place"
_EPILOG = """\
exit codes: 0 proved, 1 refuted, 2 usage or malformed input, 3 unknown, 4 a group keeps its stock collective,
5 cache integrity or trust, 6 the environment does not meet what is asked

start with: tidec compile --topo 8x8 --group examples/llama70b.json"""


def _add_asked(page: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    page.add_argument("--topo", metavar="MxL", required=is_required, help="nodes and lanes, as in 8x8, or a tidec.topo/1 file")
    page.add_argument("--group", metavar="FILE", required=is_required, help="the model's parameter groups, a tidec.group/1 file, as in examples/llama70b.json; examples/README.md has every key")


_CHOSEN = "chosen for each group, and tidec explain --topo --group says by what"


def _add_knobs(page: argparse.ArgumentParser, *, default: str = "nvls where the topology says multicast, else p2p", knobs: str = _CHOSEN) -> None:
    page.add_argument("--set", metavar="KNOB=VALUE", action="append", default=[], help=f"{_KNOB_HELP} (default: {knobs})")
    page.add_argument("--capability", metavar="p2p|nvls", help=f"how data moves in a node (default: {default})")


def _add_mode(page: argparse.ArgumentParser) -> None:
    page.add_argument("--mode", metavar="in_place|slot_reuse", help="where gradients lie while they are reduced: where autograd left them (in_place, the default), or in the "
                                                                    "landing that their parameters have just left (slot_reuse)")


def _add_order(page: argparse.ArgumentParser) -> None:
    page.add_argument("--order", metavar="FILE", help="in which order a step gathers, reshards and reduces the groups, a tidec.order/1 file (default: FSDP2's own order); it "
                                                       "shapes the arena of the model, and no plan")


def _add_compile(page: argparse.ArgumentParser) -> None:
    _add_asked(page)
    _add_knobs(page)
    _add_mode(page)
    page.add_argument("--budget", metavar="GiB", help="refuse a model whose arena is larger (default: warn above 80); a group whose staging alone is larger takes more passes first")
    _add_order(page)
    page.add_argument("--target", metavar="TARGET", help="also build a library: host (processes of one machine, g++), loopback (all ranks on one GPU, nvcc) or nccl "
                                                           "(a GPU a rank, one node, nvcc); python and echo need none")
    page.add_argument("--stock-ok", action="store_true", help="exit 0 although a group keeps its stock collective")
    page.add_argument("--no-echo", action="store_true", help="do not compile the emitted program and compare what it prints with the plan")
    page.add_argument("--no-cache", action="store_true", help="neither read nor write the cache; needs -o")
    page.add_argument("-o", metavar="DIR", help="where the bundle goes, absent or empty (default: <cache>/<bundle digest>/)")
    page.add_argument("--force", action="store_true", help="replace the bundle at -o DIR, or a kept one that somebody changed")
    page.add_argument("--dump", metavar="DIR", help="write what each step of the pipeline made, a numbered file a step")


def _add_prove(page: argparse.ArgumentParser) -> None:
    page.add_argument("--schedule", metavar="NAME", help="a file of schedules/, as in tide_rs; with --lanes")
    page.add_argument("--step", metavar="ahead|behind", help="instead, with --lanes: both collectives in a step of backward, the next all-gather ahead of, or behind, the "
                                                             "network phase of the reduce-scatter")
    _add_mode(page)
    page.add_argument("--lanes", metavar="L", help="GPUs of a node, 1..72; the node count is never given: what is proved holds for every one")
    _add_knobs(page, default="p2p", knobs="the widest wave, and one pass of whole blocks")
    page.add_argument("--no-cache", action="store_true", help="neither read nor write kept proofs")
    page.add_argument("--paper-sweep", action="store_true", help="instead, by itself: count the base plans of the paper that the verifier accepts and refuses")


def _add_verify(page: argparse.ArgumentParser) -> None:
    page.add_argument("bundle", metavar="BUNDLE", help="the folder that tidec compile printed")
    page.add_argument("--prove", action="store_true", help="also prove every program again with z3 and emit every source again (needs the extra tidec[compile])")


def _add_explain(page: argparse.ArgumentParser) -> None:
    page.add_argument("what", nargs="?", metavar="BUNDLE|CODE|WORD", help="a bundle's folder, a code such as V104, or a knob or another word of the glossary, such as W")
    _add_asked(page, is_required=False)
    _add_knobs(page)
    _add_mode(page)
    _add_order(page)


def _add_run(page: argparse.ArgumentParser) -> None:
    page.add_argument("bundle", nargs="?", metavar="BUNDLE", help="a bundle's folder (default: --topo and --group are compiled into the cache)")
    _add_asked(page, is_required=False)
    _add_knobs(page)
    _add_mode(page)
    page.add_argument("--target", metavar="TARGET", default="host", help="host (default: a process a rank, on this machine), python (the reference, in drawn orders), "
                                                                           "loopback (all ranks on one GPU) or nccl (a GPU a rank, one node)")
    page.add_argument("--calls", metavar="N", default="3", help="calls in sequence (default: 3)")
    page.add_argument("--seed", metavar="S", default="1", help="what draws the interleaving; 0 is the plain one (default: 1)")
    page.add_argument("--seeds", metavar="N", default="1", help="interleavings in one launch, from seed S on (default: 1)")
    page.add_argument("--data", metavar="KIND", default="numbers", help="numbers (default), integers (sums are exact) or classes (NaN, infinities and -0.0 among them)")
    page.add_argument("--alpha", metavar="X", help="what sums are multiplied with (default: 1/N)")
    page.add_argument("--accumulate", action="store_true", help="add to what the outputs hold")
    page.add_argument("--poison", action="store_true", help="fill arena, stages and padding with NaN first, and inputs once they are freed")
    page.add_argument("--deadline", metavar="SECONDS", help="of every wait (default: 30)")


def _add_cache(page: argparse.ArgumentParser) -> None:
    actions = page.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)

    def add(name: str, brief: str) -> argparse.ArgumentParser:
        own = actions.add_parser(name, help=brief, description=brief[0].upper() + brief[1:] + ".", allow_abbrev=False, formatter_class=_wide)
        own.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
        return own

    add("ls", "list the bundles of the cache and of its layers")
    add("path", "print the cache's folder, or that of a bundle").add_argument("digest", nargs="?", metavar="DIGEST", help="the first digits of a bundle's digest, at least 4")
    verify = add("verify", "re-check every bundle and kept proof, without z3")
    verify.add_argument("digest", nargs="*", metavar="DIGEST", help="check these bundles only")
    export = add("export", "write bundles into one archive, the same bytes for the same bundles")
    export.add_argument("digest", nargs="*", metavar="DIGEST", help="take these bundles (default: all of the own folder)")
    export.add_argument("-o", metavar="FILE", required=True, help="the archive")
    export.add_argument("--no-lib", action="store_true", help="leave out what builds added: libraries, build.json, build.log")
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")
    add("import", "take the bundles of an archive in, after all of it was checked").add_argument("file", metavar="FILE", help="an archive that export wrote")
    gc = add("gc", "remove what was not used for long, and leftovers of builders that died; never what is being read")
    gc.add_argument("--max-gib", metavar="GIB", help="remove the least recently used until the cache is at most so large")
    gc.add_argument("--older-than", metavar="DAYS", help="remove what was not used for so many days")
    gc.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")


def _add_capture(page: argparse.ArgumentParser) -> None:
    page.add_argument("script", metavar="SCRIPT", help="a training script, run until the first forward pass of a model under fully_shard; what follows -- are its arguments")
    page.add_argument("-o", metavar="FILE", required=True, help="where the group file goes")
    page.add_argument("--world", metavar="N", default="8", help="ranks; this one process is rank 0 of them, and collectives move nothing (default: 8)")
    page.add_argument("--deadline", metavar="SECONDS", default="600", help="stop the script if it has no model by then (default: 600)")
    page.add_argument("--force", action="store_true", help="replace FILE if it exists")


def _add_doctor(page: argparse.ArgumentParser) -> None:
    page.add_argument("--target", metavar="TARGET", help="only this one, of python, echo, host, loopback and nccl; exit 6 where it cannot be built and run here")


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
               order=options.order)


def _why_not(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.why_not import run

    return run(topo=options.topo, group=options.group)


def _run_command(options: argparse.Namespace, environment: Mapping[str, str]) -> Answer:
    from tidec.commands.run import run

    return run(bundle=options.bundle, topo=options.topo, group=options.group, settings=tuple(options.set), capability=options.capability, target=options.target,
               calls=options.calls, seed=options.seed, seeds=options.seeds, data=options.data, alpha=options.alpha, accumulate=options.accumulate,
               is_poisoned=options.poison, deadline=options.deadline, cache=_cache(environment), mode=options.mode)


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


_PAGES = {
    "compile": ("plan, prove and emit both collectives of every group", _add_compile),
    "prove": ("prove one schedule, or a step of both collectives, for every node count", _add_prove),
    "verify": ("re-check a bundle without z3: digests, certificates, layout, op tables, order", _add_verify),
    "explain": ("say what a plan costs, or what a code, a knob or a word means", _add_explain),
    "why-not": ("list every group that keeps its stock collective, with the reason", _add_asked),
    "run": ("run plans on made data and compare the bits with the reference", _add_run),
    "cache": ("list, check, ship and clean what is kept", _add_cache),
    "capture": ("write the parameter groups of the model that a training script shards with fully_shard", _add_capture),
    "doctor": ("say what this machine has and lacks for each target", _add_doctor),
}
COMMANDS = {"compile": _compile, "prove": _prove, "verify": _verify, "explain": _explain, "why-not": _why_not, "run": _run_command, "cache": _cache_command,
            "capture": _capture, "doctor": _doctor}
