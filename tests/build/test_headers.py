"""The hand-written headers give what Python gives, without warnings and undefined behaviour."""
import platform
import subprocess

import pytest

from tidec.build.toolchain import find_compiler, run_tool
from tidec.errors import TidecError
from tidec.index import back, evaluate, most, least, symbol, top2, wrap
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.plan.layout import lay_out
from tidec.shipped import folder

STRICT = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover=undefined")
HEADERS = sorted(p.name for p in (folder("runtime") / "include" / "tidec").glob("*.hpp"))


def ran(tmp_path, body, *, includes, uses="tidec"):
    """What a program with that main prints, a number a line."""
    lines = (
        *(f'#include "tidec/{name}"' for name in includes), "#include <algorithm>", "#include <cstdio>", "#include <vector>", f"namespace {uses} {{}}",
        f"using namespace {uses};",
        'template <class T> void show(T x) { std::printf("%lld\\n", static_cast<long long>(x)); }', "int main() {", body, "}",
    )
    file = tmp_path / "main.cpp"
    file.write_text("\n".join(lines))
    run_tool((*find_compiler().command, *STRICT, f"-I{folder('runtime')}", f"-I{folder('runtime') / 'include'}", str(file), "-o", str(tmp_path / "main")), deadline_s=120)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, timeout=60, check=True)
    return [int(x) for x in done.stdout.split()]


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_stands_alone(tmp_path, name):
    assert ran(tmp_path, "show(7);", includes=(name, name)) == [7]


def test_index_arithmetic_is_that_of_python(tmp_path):
    x = symbol("x")
    cases, want = [], []
    for a in range(-20, 21):
        for b in (1, 2, 3, 7):
            cases += [f"show(floor_div({a}, {b}));", f"show(floor_mod({a}, {b}));", f"show(least({a}, {b}));", f"show(most({a}, {b}));"]
            want += [a // b, a % b, min(a, b), max(a, b)]
            for name, f, inside in (("wrap", wrap, 0 <= a < 2 * b), ("back", back, -b <= a < b)):
                if inside:
                    cases.append(f"show({name}({a}, {b}));")
                    want.append(a % b)
                    assert evaluate(f(x, b), {"x": a}) == a % b
        cases.append(f"show(top2({a}));")
        want.append(top2(a))
    cases += [f"show(top2({2**62}LL));", f"show(top2({2**63 - 1}LL));", f"show(floor_div({-2**63 + 1}LL, 2));"]
    want += [2**62, 2**62, (-2**63 + 1) // 2]
    assert evaluate(least(x, 3), {"x": 5}) == 3 and evaluate(most(x, 3), {"x": 5}) == 5
    assert ran(tmp_path, "\n".join(cases), includes=("index.hpp",)) == want


def test_gradient_rows_are_those_of_the_layout(tmp_path):
    # Every segment of every sub-slice, for every destination node: full rows, and the elements of the partial one.
    layout = lay_out(Group("g", 1, (Parameter("a", (7, 3), Dtype.BF16), Parameter("b", (33,), Dtype.BF16), Parameter("c", (1, 2, 2), Dtype.BF16))), 6)
    params = "".join(f"{{{p.real_elems}, {p.shard_elems}, {p.shard_bytes}, {p.start_bytes}, true}}, " for p in layout.params)
    body, want = [f"static constexpr Param params[] = {{{params}}};"], []
    body.append("Layout layout{3, 2, 0, 0, 8, 1, 1, 8, Dtype::kBf16, Reduction::kInOrder, {params, 3}, {nullptr, 0}, {nullptr, 0}, {nullptr, 0}};")
    for s in range(2):
        for segment in layout.sub_slices(1, 2).segments(0, s):
            for node in range(3):
                full, tail = layout.gradient_rows(segment, node, 2)
                body.append(f"{{ Segment one[] = {{{{{segment.param}, {segment.first}, {segment.count}, {segment.at}}}}}; int64_t full = 0, tail = 0;"
                            f"each_piece(layout, {{one, 1}}, {2 * node}, 2, 8, [&](const Piece& p) {{ if (p.count == {segment.count}) full = p.rows; else tail = p.count; }});"
                            "show(full); show(tail); }")
                want += [full, tail]
    assert any(want[1::2]) and len(set(want[::2])) == 3
    assert ran(tmp_path, "\n".join(body), includes=("layout.hpp",)) == want


@pytest.mark.parametrize(("statement", "says"), [
    ("ops.copy(kStream, kGrad(0, 0, 0).at(0, 0), kOut(0, 0).at(0, 0));", "no matching function"),
    ("ops.put(kStream, kOut(0, 0).at(0, 0), kOut(0, 0).at(1, 0), kFlag().at(1, 0), 1, kFlag().at(0, 0), 1);", "not packed"),
    ("ops.zero(kStream, kOut(0, 0).at(0, 0));", "only a packed block"),
    ("ops.sum(kStream, kPart(0, kOthers).at(0, 0), kGrad(0, 0, 0).at(0, 0), kPart(0, 0).at(0, 0), false);", "a sum adds"),
    ("ops.zero(kStream, kPart(0).at(0, 0));", "one key a dimension"),
])
def test_a_move_between_blocks_that_do_not_pair_does_not_compile(tmp_path, statement, says):
    body = f"""
      static constexpr Stream kStream{{0, "s"}};
      static constexpr Flag kFlag{{0, "f", Scope::kSelf}};
      static constexpr Buffer<Block::kGradSlice, 3> kGrad{{Space::kGrad, 0, 0, 0, {{0, 0, 0}}, {{0, 0, 0}}}};
      static constexpr Buffer<Block::kOutSlice, 2> kOut{{Space::kOut, 0, 0, 0, {{0, 0}}, {{0, 0}}}};
      static constexpr Buffer<Block::kPartial, 2> kPart{{Space::kArena, 0, 0, 0, {{0, 0}}, {{0, 0}}}};
      static constexpr Layout kLayout{{}};
      (void)kStream; (void)kFlag; (void)kGrad; (void)kOut; (void)kPart;
      Echo echo;
      Ops<Echo> ops(echo, kLayout);
      {statement}
    """
    with pytest.raises(TidecError) as caught:
        ran(tmp_path, body, includes=("ops.hpp", "echo.hpp"))
    assert says in " ".join(caught.value.diagnostics[0].example)


def test_copies_that_pass_the_cache_by_are_copies(tmp_path):
    """Every form that this machine has, from and to any place in a line, to the byte: what is not copied here its caller copies, and nothing beside is touched."""
    body = """
    std::vector<char> src(5000), dst(5000);
    for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<char>(i * 7 + i / 251);
    for (const bool is_lines : {false, true}) {
      long long wrong = 0, least_done = 5000;
      for (int64_t bytes : {0, 1, 63, 64, 255, 256, 319, 1024, 4000}) {
        for (int64_t from = 0; from < 67; from += 3) {
          for (int64_t to = 0; to < 66; ++to) {
            std::fill(dst.begin(), dst.end(), static_cast<char>(99));
            const bool has = is_lines ? __builtin_cpu_supports("avx512f") : has_vectors();
            const int64_t done = !has ? bytes : is_lines ? stream_lines(&dst[to], &src[from], bytes) : stream_vector(&dst[to], &src[from], bytes);
            if (!has) std::memcpy(&dst[to], &src[from], static_cast<size_t>(bytes));
            if (bytes == 4000) least_done = std::min<long long>(least_done, done);
            wrong += done > bytes || std::memcmp(&dst[to], &src[from], static_cast<size_t>(done)) != 0;
            for (int64_t i = 0; i < 5000; ++i) wrong += (i < to || i >= to + done) && dst[i] != 99;
          }
        }
      }
      show(wrong);
      show(least_done > 3500);
    }
    """
    if platform.machine() != "x86_64":
        pytest.skip("such stores are of x86")
    assert ran(tmp_path, body, includes=("../../host/arithmetic.cpp",), uses="tidec::host") == [0, 1, 0, 1]
