"""Nothing that is thrown crosses a C interface: of the guard, and of both targets' interfaces around a node that throws (no GPU, no plan)."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidec.build.toolchain import find_compiler, run_tool
from tidec.shipped import folder

FLAGS = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread")
THROWN = {"failure": "of the target", "memory": "there is no more memory", "standard": "a name of the standard library", "empty": "it failed, and nothing said why",
          "number": "what was thrown says nothing"}

# What throws: told by its word; and what holds the lines that both mains print.
THROWS = """
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
template <class Failure>
void throws(const char* what) {
  if (std::strcmp(what, "failure") == 0) throw Failure{"of the target"};
  if (std::strcmp(what, "memory") == 0) throw std::bad_alloc();
  if (std::strcmp(what, "standard") == 0) throw std::length_error("a name of the standard library");
  if (std::strcmp(what, "empty") == 0) throw Failure{""};
  if (std::strcmp(what, "number") == 0) throw 7;
}
"""

GUARD = """
#include "throws.hpp"
#include "tidec/guard.hpp"
#include <pthread.h>
struct Failure { std::string why; };
int main(int argc, char** argv) {
  char message[64] = "untouched";
  const bool is_done = tidec::guarded<Failure>(message, sizeof message, [] {});
  std::printf("%d %s\\n", is_done, message);
  for (int i = 1; i < argc; ++i) {
    const bool is_fine = tidec::guarded<Failure>(message, sizeof message, [&] { throws<Failure>(argv[i]); });
    std::printf("%d %s\\n", is_fine, message);
  }
  tidec::guarded<Failure>(message, 8, [] { throw Failure{"longer than its room"}; });
  std::printf("%s\\n", message);
  tidec::guarded<Failure>(nullptr, 0, [] { throw 7; });
  pthread_t thread;
  pthread_create(&thread, nullptr, [](void*) -> void* {
    tidec::guarded<Failure>(nullptr, 0, [] { pthread_exit(const_cast<char*>("ended")); });
    return const_cast<char*>("came back");
  }, nullptr);
  void* said = nullptr;
  pthread_join(thread, &said);
  std::printf("%s\\n", static_cast<char*>(said));
}
"""

# In the place of the node of each target.
NODES = {
    "host": """
#pragma once
#include <functional>
#include "throws.hpp"
#include "tidec/calls.hpp"
#include "tidec/node.h"
namespace tidec::host {
struct Stopped { std::string why; };
inline constexpr int64_t kTallied = 8;
inline const char* said = "";
struct Node {
  Node(int64_t, int64_t, int64_t) : calls_(*tidec_program_at(0)) { throws<Stopped>(said); }
  void handle(void*) const { throws<Stopped>(said); }
  void connect(const void*) { throws<Stopped>(said); }
  char* arena() const { throws<Stopped>(said); return nullptr; }
  int64_t arena_bytes() const { return 0; }
  void gather(int64_t, const char*) { throws<Stopped>(said); }
  const char* acquire(int64_t) { throws<Stopped>(said); return nullptr; }
  void release(int64_t) { throws<Stopped>(said); }
  void reduce(int64_t, const void* const*, char*, float, bool) { throws<Stopped>(said); }
  void wait(int64_t) { throws<Stopped>(said); }
  void counts(int64_t, int64_t*) const { throws<Stopped>(said); }
  void ask(std::function<bool()>) { throws<Stopped>(said); }
  void check_use(const void*) { if (!why_.empty()) throw Stopped{why_}; }
  void fail(const std::string& why) { why_ = why; }
  const std::string& why() const { return why_; }
  Calls& calls() { return calls_; }
  Calls calls_;
  std::string why_;
};
}  // namespace tidec::host
struct tidec_node { tidec::host::Node node; };
using tidec::host::said;
""",
    "nccl": """
#pragma once
#include "cuda/failure.hpp"
#include "throws.hpp"
#include "tidec/calls.hpp"
#include "tidec/guard.hpp"
#include "tidec/node.h"
using cudaStream_t = void*;
namespace tidec::nccl {
using cuda::Failure;
enum class Part { kAcquire, kRelease };
inline constexpr int64_t kTallied = 8;
struct Tally { int64_t ops[TIDEC_NODE_KINDS], bytes[TIDEC_NODE_KINDS]; };
inline const char* said = "";
struct Node {
  Node(int64_t, int64_t, int, int64_t) { throws<Failure>(said); }
  void handle(void*) const { throws<Failure>(said); }
  void connect(const void*) { throws<Failure>(said); }
  char* arena() const { throws<Failure>(said); return nullptr; }
  const tidec_program& program() const { return *tidec_program_at(0); }
  void gather(int64_t, const void*, cudaStream_t) { throws<Failure>(said); }
  void part(Part, int64_t, cudaStream_t) { throws<Failure>(said); }
  const char* landing() const { return nullptr; }
  void reduce(int64_t, const void* const*, void*, float, bool, cudaStream_t) { throws<Failure>(said); }
  void wait(int64_t) { throws<Failure>(said); }
  const Tally& tally(int64_t) const { throws<Failure>(said); return tally_; }
  Tally tally_{};
};
}  // namespace tidec::nccl
struct tidec_node { tidec::nccl::Node node; tidec::Calls calls; char failure[tidec::kReasonBytes] = ""; };
using tidec::nccl::said;
""",
}

MAIN = """
#include "@/node.hpp"
namespace {
char message[64];
void show(const char* what, int32_t code) { std::printf("%s %d %s\\n", what, code, message); message[0] = '\\0'; }
tidec_node* opened() { said = ""; return tidec_node_open(0, 0, 1, 1000, message, sizeof message); }
}
extern "C" const tidec_program* tidec_program_at(int64_t) {
  static constexpr tidec::Layout layout{};
  static const tidec_program one{"p", "", 1, 1, "", 0, 2, 0, &layout, 0, nullptr};
  return &one;
}
int main(int, char** argv) {
  char bytes[TIDEC_NODE_HANDLE_BYTES] = "";
  int64_t counts[2 * TIDEC_NODE_KINDS], size = 0;
  void* arena = nullptr;
  const void* landing = nullptr;
  tidec_node* node = opened();
  said = argv[1];
  const bool is_made = tidec_node_open(0, 0, 1, 1000, message, sizeof message) != nullptr;
  show("open", !is_made);
  show("handle", tidec_node_handle(node, bytes, message, sizeof message));
  show("connect", tidec_node_connect(node, bytes, message, sizeof message));
  show("arena", tidec_node_arena(node, &arena, &size, message, sizeof message));
  show("out of turn", tidec_node_gather(node, 1, bytes, nullptr, message, sizeof message));
  show("gather", tidec_node_gather(node, 0, bytes, nullptr, message, sizeof message));
  said = "";
  show("after it", tidec_node_wait(node, 1000, message, sizeof message));
  tidec_node_close(node);
  node = opened();
  tidec_node_gather(node, 0, bytes, nullptr, message, sizeof message);
  said = argv[1];
  show("acquire", tidec_node_acquire(node, 0, nullptr, &landing, message, sizeof message));
  tidec_node_close(node);
  node = opened();
  tidec_node_gather(node, 0, bytes, nullptr, message, sizeof message);
  tidec_node_acquire(node, 0, nullptr, &landing, message, sizeof message);
  tidec_node_release(node, 0, nullptr, message, sizeof message);
  said = argv[1];
  show("counts", tidec_node_counts(node, 0, counts, message, sizeof message));
  show("wait", tidec_node_wait(node, 1000, message, sizeof message));
  tidec_node_close(node);
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """`built(name, text, *sources, headers=folder)` is a program of that text; those headers come before those of the runtime."""
    where = tmp_path_factory.mktemp("guard")
    (where / "throws.hpp").write_text("#pragma once\n" + THROWS)

    def build(name: str, text: str, *sources: Path, headers: Path = where) -> Path:
        (where / f"{name}.cpp").write_text(text)
        includes = (f"-I{headers}", f"-I{where}", f"-I{folder('runtime')}", f"-I{folder('runtime') / 'include'}")
        run_tool((*find_compiler().command, *FLAGS, *includes, str(where / f"{name}.cpp"), *map(str, sources), "-o", str(where / name)), deadline_s=120)
        return where / name

    return build


def lines(program: Path, *arguments: str) -> list[str]:
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_whatever_is_thrown_becomes_text_and_a_thread_may_end(built):
    told = lines(built("alone", GUARD), *THROWN)
    assert told == ["1 untouched", *(f"0 {why}" for why in THROWN.values()), "longer ", "ended"]


@pytest.mark.parametrize("target", NODES)
def test_every_function_of_a_node_says_what_was_thrown_in_it(built, target, tmp_path):
    (tmp_path / target).mkdir()
    (tmp_path / target / "node.hpp").write_text(NODES[target])
    program = built(target, MAIN.replace("@", target), folder("runtime") / target / "interface.cpp", headers=tmp_path)
    for what, why in THROWN.items():
        told = lines(program, what)
        refused = next(line for line in told if line.startswith("out of turn"))
        assert refused.startswith("out of turn 1 ") and why not in refused, "it is none, and is not begun"
        assert [line for line in told if line != refused] == [f"{name} 1 {why}" for name in ("open", "handle", "connect", "arena", "gather", "after it", "acquire", "counts", "wait")]
