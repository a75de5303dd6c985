"""The pages of the command line: every command's words and options, and how a call that does not fit them is told."""
from __future__ import annotations

import argparse
from typing import NoReturn

from tidec import __version__
from tidec.errors import Diagnostic, TidecError

_KNOB_HELP = ("set a knob: W, k, n_stg, n_part, n_out, chunk_bytes, chunks, stripes, ctas_sum, ctas_land or cast (not built yet: pacing); "
              "repeat for several; tidec explain W says what one is")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are diagnostics."""

    def error(self, message: str) -> NoReturn:
        raise TidecError(Diagnostic("P001", message, help=f"run {self.prog} --help"))


def parser() -> argparse.ArgumentParser:
    """What reads a command line. Errors are diagnostics; help and version end it as argparse does, by SystemExit."""
    whole = _new_parser("tidec", "A schedule compiler for FSDP2 communication: plans that are proved before they run.", _EPILOG)
    whole.add_argument("--version", action="version", version=f"tidec {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, (brief, add) in _PAGES.items():
        page = commands.add_parser(name, help=brief, description=brief[0].upper() + brief[1:] + ".", allow_abbrev=False, formatter_class=_wide)
        add(page)
        page.add_argument("--json", action="store_true", help="print one JSON object")
        page.add_argument("--version", action="version", version=f"tidec {__version__}")
    return whole


def _new_parser(prog: str, description: str, epilog: str) -> _Parser:
    return _Parser(prog=prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=_wide)


def _wide(prog: str) -> argparse.HelpFormatter:
    # The width is fixed, so that a page reads the same everywhere.
    return argparse.RawDescriptionHelpFormatter(prog, width=110, max_help_position=28)


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


def _add_budget(page: argparse.ArgumentParser) -> None:
    page.add_argument("--budget", metavar="GiB", help="refuse a model whose arena is larger (default: warn above 80); a group whose staging alone is larger takes more passes first")


def _add_compile(page: argparse.ArgumentParser) -> None:
    _add_asked(page)
    _add_knobs(page)
    _add_mode(page)
    _add_budget(page)
    _add_order(page)
    page.add_argument("--target", metavar="TARGET", help="also build a library: host (processes of one machine, g++), loopback (all ranks on one GPU, nvcc) or nccl "
                                                           "(a GPU a rank, nvcc); python and echo need none")
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
    _add_budget(page)
    _add_order(page)


def _add_run(page: argparse.ArgumentParser) -> None:
    page.add_argument("bundle", nargs="?", metavar="BUNDLE", help="a bundle's folder (default: --topo and --group are compiled into the cache)")
    _add_asked(page, is_required=False)
    _add_knobs(page)
    _add_mode(page)
    page.add_argument("--target", metavar="TARGET", default="host", help="host (default: a process a rank, on this machine), python (the reference, in drawn orders), "
                                                                           "loopback (all ranks on one GPU) or nccl (a GPU a rank; several nodes need NCCL 2.31 preloaded)")
    page.add_argument("--calls", metavar="N", default="3", help="calls in sequence (default: 3)")
    page.add_argument("--seed", metavar="S", default="1", help="what draws the interleaving; 0 is the plain one (default: 1)")
    page.add_argument("--seeds", metavar="N", default="1", help="interleavings in one launch, from seed S on (default: 1)")
    page.add_argument("--data", metavar="KIND", default="numbers", help="numbers (default), integers (sums are exact) or classes (NaN, infinities and -0.0 among them)")
    page.add_argument("--alpha", metavar="X", help="what sums are multiplied with (default: 1/N)")
    page.add_argument("--accumulate", action="store_true", help="add to what the outputs hold")
    page.add_argument("--poison", action="store_true", help="fill arena, stages and padding with NaN first, and inputs once they are freed")
    page.add_argument("--deadline", metavar="SECONDS", help="of every wait (default: 30)")


def _add_bench(page: argparse.ArgumentParser) -> None:
    page.add_argument("bundle", nargs="?", metavar="BUNDLE", help="a bundle's folder (default: the inputs are compiled into the cache, which takes z3)")
    _add_asked(page, is_required=False)
    page.add_argument("--equal", metavar="P:BYTES", help="made-up groups, instead of a file or beside it: P equal parameters of bf16, and the bytes of a rank's shard of them, as in 30:128MiB,30:8MiB")
    page.add_argument("--unequal", metavar="P:BYTES", help="the same with sizes in the proportions of a Llama block's")
    _add_knobs(page)
    _add_mode(page)
    page.add_argument("--target", metavar="TARGET", default="host", help="host (default: processes of this machine, beside gloo) or nccl (a GPU a rank, beside NCCL; several nodes need NCCL 2.31 preloaded)")
    page.add_argument("--collective", metavar="NAME", help="only all-gather, or only reduce-scatter")
    page.add_argument("--groups", metavar="NAMES", help="only these groups, commas between")
    page.add_argument("--ctas", metavar="N", help="CTAs of each sum, as in 8,16, a line each (default: as the bundle says)")
    page.add_argument("--calls", metavar="N", default="10", help="calls in a measurement, one behind the other (default: 10)")
    page.add_argument("--rounds", metavar="N", default="5", help="measurements of each side, in both orders; medians are told (default: 5)")
    page.add_argument("--seed", metavar="S", default="1", help="of the numbers that are moved and summed (default: 1)")
    page.add_argument("--deadline", metavar="SECONDS", default="60", help="of every wait (default: 60)")
    page.add_argument("-o", metavar="FILE", help="also write what --json prints to a file, line by line as it is measured")
    page.add_argument("--force", action="store_true", help="replace FILE if it exists")


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


_PAGES = {
    "compile": ("plan, prove and emit both collectives of every group", _add_compile),
    "prove": ("prove one schedule, or a step of both collectives, for every node count", _add_prove),
    "verify": ("re-check a bundle without z3: digests, certificates, layout, op tables, order", _add_verify),
    "explain": ("say what a plan costs, or what a code, a knob or a word means", _add_explain),
    "why-not": ("list every group that keeps its stock collective, with the reason", _add_asked),
    "run": ("run plans on made data and compare the bits with the reference", _add_run),
    "bench": ("measure plans beside the stock collectives in one run, and compare the bits", _add_bench),
    "cache": ("list, check, ship and clean what is kept", _add_cache),
    "capture": ("write the parameter groups of the model that a training script shards with fully_shard", _add_capture),
    "doctor": ("say what this machine has and lacks for each target", _add_doctor),
}
