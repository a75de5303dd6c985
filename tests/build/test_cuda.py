"""What nvcc makes of a bundle's kernels: no spills, the instructions that are meant, and what the host code around them does."""
from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tidec.build.cuda import Resources, compile_kernels, find_tools, resources
from tidec.build.toolchain import Nvcc, find_compiler, find_nvcc, run_tool
from tidec.emit.render import KERNELS
from tidec.errors import TidecError
from tidec.shipped import folder

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "emit" / "block.kernels.cu"
RUNTIME = folder("runtime")
INCLUDE = (RUNTIME / "include", RUNTIME)
# The pull of several other kernels: every dtype that gradients may have, and lane counts up to the largest node.
MANY = """#include "cuda/launch.cuh"
namespace tidec::cuda {
template struct Sum<Bf16, 1>; template struct Sum<Bf16, 2>; template struct Sum<Bf16, 4>; template struct Sum<Bf16, 8>; template struct Sum<Bf16, 72>;
template struct Sum<Fp16, 8>; template struct Sum<float, 8>; template struct Sum<double, 4>;
template struct Landing<InOrder<1>>; template struct Landing<InOrder<8>>; template struct Landing<InOrder<72>>;
template struct Landing<InOneSum<8>>; template struct Landing<InSwitch>;
template struct Casting<float, Bf16>; template struct Casting<float, Fp16>; template struct Casting<double, Bf16>; template struct Casting<Bf16, float>;
}
"""


def nvcc_or_skip() -> Nvcc:
    try:
        return find_nvcc()
    except TidecError as problem:
        pytest.skip(problem.diagnostics[0].sentence)


def compiled(tmp_path: Path, text: str, nvcc: Nvcc, architecture: str, *, is_cubin: bool = False) -> tuple[Path, str]:
    (tmp_path / KERNELS).write_text(text, encoding="utf-8")
    target = tmp_path / f"{architecture}.{'cubin' if is_cubin else 'o'}"
    return target, compile_kernels(tmp_path / KERNELS, target, nvcc, architecture, include=INCLUDE, flags=("-cubin",) if is_cubin else (), deadline_s=300)


def test_what_ptxas_says_is_read():
    said = """ptxas info    : Compiling entry function '_Z3sumv' for 'sm_90'
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes stack, 1024 bytes smem
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '_Z4zerov' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
"""
    assert resources(said) == (Resources("_Z3sumv", 40, 1024, 8, 16), Resources("_Z4zerov", 32, 0, 0, 0))


def test_a_kernel_that_spills_is_refused(tmp_path):
    """By an nvcc that says so: no kernel of the tree spills."""
    stub = tmp_path / "nvcc"
    stub.write_text("#!/bin/sh\necho \"ptxas info : Compiling entry function '_Z3sumv' for 'sm_90'\"\n"
                    "echo '0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads'\necho 'ptxas info : Used 255 registers'\n")
    stub.chmod(0o755)
    with pytest.raises(TidecError, match="1 kernels spill registers"):
        compiled(tmp_path, "", Nvcc((str(stub),), (13, 0), "nvcc 13.0"), "sm_90")


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_the_kernels_of_a_bundle_compile_and_none_spills(tmp_path, architecture):
    _, said = compiled(tmp_path, GOLDEN.read_text(encoding="utf-8"), nvcc_or_skip(), architecture)
    found = resources(said)
    # Two sizes of parameters, with and without a sum that goes on: four kernels a sum; one a landing, a cast and the zero.
    assert len(found) == 4 + 1 + 1 + 1
    assert all(r.spill_bytes == 0 and r.stack_bytes == 0 and r.registers <= 168 for r in found), found
    assert "Compile time" not in said


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_no_kernel_spills_for_any_type_and_lane_count(tmp_path, architecture):
    found = resources(compiled(tmp_path, MANY, nvcc_or_skip(), architecture)[1])
    counts = {kind: sum(f"{kind}_kernel" in r.name for r in found) for kind in ("sum", "land", "cast")}
    assert counts == {"sum": 8 * 4, "land": 5, "cast": 4}
    assert all(r.spill_bytes == 0 for r in found), [r for r in found if r.spill_bytes]


def disassembled(cubin: Path) -> str:
    beside = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    tool = shutil.which("cuobjdump", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if tool is None:
        pytest.skip("cuobjdump is not installed: pip install 'tidec[test]'")
    path = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run((tool, "-sass", str(cubin)), env=path, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_only_the_lowering_to_the_switch_holds_its_instruction(tmp_path, architecture):
    nvcc, p2p = nvcc_or_skip(), GOLDEN.read_text(encoding="utf-8")
    assert "InOrder<2>" in p2p
    nvls = p2p.replace("InOrder<2>", "BySwitch<2>").replace("kInOrder", "kInSwitch")
    for name, text, is_switched in (("p2p", p2p, False), ("nvls", nvls, True)):
        (tmp_path / name).mkdir()
        sass = disassembled(compiled(tmp_path / name, text, nvcc, architecture, is_cubin=True)[0])
        assert ("LDGMC" in sass) is is_switched, name
        assert ("LDGMC.E.ADD.F32x4.RN.STRONG.SYS" in sass) is is_switched, name
        # Sums come by bulk copies, in either.
        assert "UBLKCP" in sass


def test_a_switch_that_is_only_virtual_is_made_of_loads(tmp_path):
    nvcc = nvcc_or_skip()
    text = "#define TIDEC_VIRTUAL_SWITCH\n" + GOLDEN.read_text(encoding="utf-8").replace("InOrder<2>", "BySwitch<2>").replace("kInOrder", "kInSwitch")
    assert "LDGMC" not in disassembled(compiled(tmp_path, text, nvcc, "sm_90", is_cubin=True)[0])


def test_tools_name_nvcc_its_host_compiler_and_the_architecture(monkeypatch):
    nvcc = nvcc_or_skip()
    monkeypatch.setenv("TIDEC_CUDA_ARCH", "9.0")
    tools = find_tools()
    assert tools.architecture == "sm_90" and tools.compiler.version == f"{nvcc.version}, {find_compiler().version}"


# ---- the host code around the kernels, without CUDA

TERMS = r"""
#include <cassert>
#include <cstdio>

#include "cuda/terms.hpp"

using namespace tidec::cuda;

template <class Do>
bool is_unfit(Do what) {
  try {
    what();
    return false;
  } catch (const Unfit&) {
    return true;
  }
}

int main() {
  static char lanes[3][4096], own[4096], into[8192];
  SumPieces sum;
  // Two other lanes with two pieces each, then the own ones: rows of 5 and of 3 values.
  const auto terms = [&](int64_t shift) {
    std::vector<Term> t;
    for (int i = 0; i < 2; ++i) {
      t.push_back({lanes[i] + 32, 40, into + 64, 80, 5, 2});
      t.push_back({lanes[i] + 200 + (i == 1 ? shift : 0), 0, into + 300, 0, 3, 1});
    }
    t.push_back({own + 6, 22, into + 64, 80, 5, 2});
    t.push_back({own + 100, 0, into + 300, 0, 3, 1});
    return t;
  };
  gather(terms(0), 3, into, sum);
  assert(sum.staged.size() == 2 && sum.staged[0] == lanes[0] + 32 && sum.staged[1] == lanes[1] + 32);
  assert(sum.pieces.size() == 2);
  const SumPiece& a = sum.pieces[0];
  const SumPiece& b = sum.pieces[1];
  assert(a.own == own + 6 && a.own_pitch == 22 && a.staged == 0 && a.staged_pitch == 40 && a.into == 64 && a.into_pitch == 80 && a.elems == 5 && a.rows == 2);
  assert(b.own == own + 100 && b.staged == 168 && b.into == 300 && b.elems == 3 && b.rows == 1);
  // A lane whose block is laid out otherwise, or a lane too few, has no kernel.
  assert(is_unfit([&] { gather(terms(2), 3, into, sum); }));
  assert(is_unfit([&] { gather(terms(0), 4, into, sum); }));
  std::vector<Term> odd = terms(0);
  odd[2].from += 2, odd[3].from += 2;
  assert(is_unfit([&] { gather(odd, 3, into, sum); }));
  // One lane stages nothing.
  gather({{own, 0, into, 0, 4, 1}}, 1, into, sum);
  assert(sum.staged.empty() && sum.pieces.size() == 1 && sum.pieces[0].staged == 0);
  gather({}, 3, into, sum);
  assert(sum.pieces.empty());

  // Rows at 64, 144 and 300 of 512 bytes leave four gaps.
  const std::vector<Gap> g = gaps(terms(0), 2, into, 512);
  assert(g.size() == 4 && g[0].into == into && g[0].bytes == 64 && g[1].into == into + 84 && g[1].bytes == 60 && g[2].into == into + 164 && g[2].bytes == 136);
  assert(g[3].into == into + 312 && g[3].bytes == 200);
  assert(gaps({{own, 0, into, 0, 128, 1}}, 1, into, 512).empty());
  assert(gaps({}, 0, into, 512).size() == 1);
  assert(is_unfit([&] { gaps(terms(0), 2, into, 308); }));
  assert(is_unfit([&] { gaps({{own, 0, into, 0, 5, 1}, {own, 0, into + 16, 0, 5, 1}}, 2, into, 512); }));
  std::puts("fine");
}
"""


def test_terms_of_a_sum_become_pieces_and_gaps_by_hand(tmp_path):
    (tmp_path / "main.cpp").write_text(TERMS, encoding="utf-8")
    program = tmp_path / "main"
    run_tool((*find_compiler().command, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", f"-I{RUNTIME / 'include'}", f"-I{RUNTIME}",
              str(tmp_path / "main.cpp"), str(RUNTIME / "cuda" / "terms.cpp"), "-o", str(program)), deadline_s=120)
    assert run_tool((str(program),), deadline_s=20) == "fine\n"


CHAIN = r"""
#include <cassert>
#include <cstdio>

#include "cuda/chain.hpp"

using namespace tidec::cuda;

int main() {
  static char lanes[2][4096], own[4096], into[8192];
  uint64_t come[2] = {}, gone[2] = {}, other = 0;
  // A sum of one piece, whose blocks of two other lanes begin `at` further.
  const auto sum = [&](int64_t at, int64_t skew = 0) { return SumPieces{{lanes[0] + at, lanes[1] + at + skew}, {{own, 0, 32, 0, 16, 0, 5, 1}}}; };
  SumChain chain(2, 3);
  assert(chain.is_empty() && !chain.tells_by(100) && chain.add(sum(0), into, false));
  // Alone it is no call of steps.
  assert(chain.call().num_steps == 0 && chain.call().num_pieces == 1);
  assert(chain.tell(&gone[0], 7) && chain.tellings().size() == 1 && !chain.tells_by(7));
  // Nothing follows before all lanes are told.
  assert(!chain.add(sum(64), into, false));
  assert(chain.tell(&gone[1], 7) && chain.tellings().empty() && chain.tells_by(7) && !chain.tells_by(6));
  chain.await(&come[0], 8), chain.await(&come[1], 8);
  // Blocks that moved differently, other words, another way to add: no.
  assert(!chain.add(sum(64, 16), into, false) && !chain.add(sum(64), into, true));
  assert(chain.add(sum(64), into + 256, false) && chain.waits().empty());
  assert(chain.tell(&gone[0], 8) && !chain.tell(&other, 8));
  assert(chain.tellings().size() == 1 && chain.tellings()[0].word == &gone[0]);
  const SumCall call = chain.call();
  assert(call.num_steps == 2 && call.num_pieces == 2 && call.into == into && call.staged[1] == lanes[1] && call.awaits[1] == &come[1] && call.tells[0] == &gone[0]);
  assert(call.steps[0].awaited == 0 && call.steps[0].told == 7 && call.steps[1].awaited == 8 && call.steps[1].told == 0 && call.steps[1].num_pieces == 1);
  assert(call.pieces[1].staged == 96 && call.pieces[1].into == 272 && call.pieces[0].staged == 32 && call.pieces[0].into == 16);
  chain.clear();
  // Waits for other words than before, or a fourth piece, begin anew.
  for (uint64_t i = 1; i <= 3; ++i) {
    if (i > 1) chain.await(&come[0], i), chain.await(&come[1], i);
    assert(chain.add(sum(0), into, false) && chain.tell(&gone[0], i) && chain.tell(&gone[1], i));
  }
  assert(!chain.add(sum(0), into, false));
  chain.clear();
  assert(chain.add(sum(0), into, false) && chain.tell(&gone[0], 1) && chain.tell(&gone[1], 1));
  chain.await(&come[0], 2), chain.await(&come[1], 2);
  assert(chain.add(sum(0), into, false) && chain.tell(&gone[0], 2) && chain.tell(&gone[1], 2));
  chain.await(&come[0], 3), chain.await(&other, 3);
  assert(!chain.add(sum(0), into, false) && chain.waits().size() == 2);
  std::puts("fine");
}
"""


def test_sums_go_together_where_they_move_alike_by_hand(tmp_path):
    (tmp_path / "main.cpp").write_text(CHAIN, encoding="utf-8")
    program = tmp_path / "main"
    run_tool((*find_compiler().command, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", f"-I{RUNTIME / 'include'}", f"-I{RUNTIME}",
              str(tmp_path / "main.cpp"), str(RUNTIME / "cuda" / "chain.cpp"), "-o", str(program)), deadline_s=120)
    assert run_tool((str(program),), deadline_s=20) == "fine\n"


FOLD = r"""
#include <cassert>
#include <cstdio>

#include "cuda/streams.hpp"

using namespace tidec::cuda;

int main() {
  char* const into = reinterpret_cast<char*>(0x100000000);
  const char* const from = reinterpret_cast<const char*>(0x900000000);
  const auto single = [&](int64_t to, int64_t at, int64_t width) { return Copy{into + to, from + at, width, 1, 0, 0}; };
  // Equal widths at even steps become rows of one rectangle.
  std::vector<Copy> c = {single(0, 0, 8), single(20, 8, 8), single(40, 16, 8)};
  fold(c);
  assert(c.size() == 1 && c[0].rows == 3 && c[0].into_pitch == 20 && c[0].from_pitch == 8 && c[0].width == 8);
  // Another width, an uneven step, or a step backwards does not.
  c = {single(0, 0, 8), single(20, 8, 4), single(40, 16, 4), single(61, 20, 4), single(0, 24, 4)};
  fold(c);
  assert(c.size() == 4 && c[0].rows == 1 && c[1].rows == 2 && c[1].into_pitch == 20 && c[2].rows == 1 && c[3].rows == 1);
  // Neither do rows that would overlap, nor steps that a pitch cannot be.
  c = {single(0, 0, 8), single(4, 8, 8)};
  fold(c);
  assert(c.size() == 2);
  c = {single(0, 0, 8), single(int64_t{1} << 31, 8, 8)};
  fold(c);
  assert(c.size() == 2);
  // Rectangles stay what they are.
  c = {Copy{into, from, 8, 2, 16, 16}, Copy{into + 32, from + 32, 8, 2, 16, 16}};
  fold(c);
  assert(c.size() == 2);
  c.clear();
  fold(c);
  assert(c.empty());
  std::puts("fine");
}
"""


def test_copies_fold_into_rectangles_by_hand(tmp_path):
    nvcc = nvcc_or_skip()
    (tmp_path / "main.cpp").write_text(FOLD, encoding="utf-8")
    program = tmp_path / "main"
    run_tool((*nvcc.command, "-std=c++17", f"-I{RUNTIME / 'include'}", f"-I{RUNTIME}", str(tmp_path / "main.cpp"), str(RUNTIME / "cuda" / "streams.cpp"), "-o", str(program)),
             deadline_s=120)
    assert run_tool((str(program),), deadline_s=20) == "fine\n"
