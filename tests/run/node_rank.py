"""One rank of tests/run/test_node.py: it does what it is told, a line of JSON each, and answers in a line. It imports nothing of tidec, so it starts fast.

Memory travels as hex. Arguments: the module tidec_rt, the library, the program, the rank, the deadline in ms.
"""
import ctypes
import importlib.util
import json
import os
import resource
import signal
import sys
import threading
import time


class Rank:
    def __init__(self, module, library, program, rank, deadline_ms):
        spec = importlib.util.spec_from_file_location("tidec_rt", module)
        rt = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(rt)
        self.files_before = _files()
        self.node = rt.Node(rt.Library(library), int(program), int(rank), deadline_ms=int(deadline_ms))
        self.shards, self.landings = {}, {}

    def handle(self):
        return self.node.handle().hex()

    def connect(self, handles):
        self.node.connect([bytes.fromhex(h) for h in handles])

    def gather(self, call, shard):
        self.shards[call] = _memory(shard)
        self.node.gather(call, ctypes.addressof(self.shards[call]))

    def acquire(self, call, nbytes, spoil=True):
        """The landing's bytes. The shard is spoilt: it may be written again."""
        at = self.landings[call] = self.node.acquire(call)
        arena, size = self.node.arena()
        assert arena <= at and at + nbytes <= arena + size
        if spoil:
            shard = self.shards.pop(call)
            ctypes.memset(shard, 0xFF, len(shard))
        return ctypes.string_at(at, nbytes).hex()

    def look(self, call, nbytes):
        """The landing's bytes, later."""
        return ctypes.string_at(self.landings[call], nbytes).hex()

    def release(self, call):
        self.node.release(call)

    def reduce(self, call, gradients, out, alpha, accumulate):
        kept = [None if g is None else _memory(g) for g in gradients]
        packed = _memory(out)
        self.node.reduce(call, [0 if g is None else ctypes.addressof(g) for g in kept], ctypes.addressof(packed), alpha, accumulate)
        return bytes(packed).hex()

    def reduce_at(self, call, gradients, out):
        """With these addresses."""
        self.node.reduce(call, gradients, out, 1.0, False)

    def gather_at(self, call, shard, stream):
        self.node.gather(call, shard, stream)

    def wait(self, deadline_ms):
        self.node.wait(deadline_ms)

    def counts(self, call):
        return self.node.counts(call)

    def patiently(self, what, *arguments):
        """What a call says that fails, for how long it took, the processor's part of that, and whether another thread went on meanwhile; in seconds."""
        ticks, is_over = [], threading.Event()

        def tick():
            while not is_over.wait(0.001):
                ticks.append(1)

        thread = threading.Thread(target=tick)
        thread.start()
        start, before = time.monotonic(), time.process_time()
        try:
            getattr(self.node, what)(*arguments)
            said = ""
        except RuntimeError as problem:
            said = str(problem)
        took, spent = time.monotonic() - start, time.process_time() - before
        is_over.set()
        thread.join()
        return [said, took, spent, len(ticks)]

    def signalled(self, what, *arguments, raises):
        """What a call says, or what a handler of SIGINT raised in it, and after how many seconds from the signal, which another thread sends while the call waits."""
        seen = []

        def handler(number, frame):
            try:
                self.node.close()
            except RuntimeError as problem:
                seen.append(str(problem))
            seen.append(time.monotonic())
            if raises:
                raise KeyboardInterrupt("of a handler")

        signal.signal(signal.SIGINT, handler)
        never, sent = threading.Event(), []

        def send():
            # It gets the lock of Python so often only while the call has given it up.
            for _ in range(200):
                never.wait(0.001)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            getattr(self.node, what)(*arguments)
            said = ""
        except RuntimeError as problem:
            said = str(problem)
        except KeyboardInterrupt as problem:
            said = f"KeyboardInterrupt {problem}"
        took = time.monotonic() - sent[0]
        thread.join()
        return [said, took, seen[0], seen[1] - sent[0]]

    def forked(self, call, shard):
        """What a call says in a process that was forked off, which then closes the node."""
        memory = _memory(shard)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self.node.gather(call, ctypes.addressof(memory))
                os.write(write, b"nothing")
            except RuntimeError as problem:
                os.write(write, str(problem).encode())
            self.node.close()
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        said = os.read(read, 4096).decode()
        os.close(read)
        return said

    def many_gathers(self, first, count, shard):
        """Calls one after the other, each begun before the one before is released. Microseconds a call, KiB of the process, and files that it has
        open since it opened the node."""
        memory, before = _memory(shard), resource.getrusage(resource.RUSAGE_SELF)
        for e in range(first, first + count):
            self.node.gather(e, ctypes.addressof(memory))
            if e > first:
                self.node.release(e - 1)
            self.node.acquire(e)
        self.node.release(first + count - 1)
        return self._cost(before, count)

    def many_reduces(self, first, count, gradients, nbytes):
        kept, before = [None if g is None else _memory(g) for g in gradients], resource.getrusage(resource.RUSAGE_SELF)
        out, addresses = ctypes.create_string_buffer(nbytes), [0 if g is None else ctypes.addressof(g) for g in kept]
        for e in range(first, first + count):
            self.node.reduce(e, addresses, ctypes.addressof(out), 1.0, False)
        return self._cost(before, count)

    def _cost(self, before, count):
        now = resource.getrusage(resource.RUSAGE_SELF)
        return [(now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime) / count * 1e6, _kept_kib(), _files() - self.files_before]

    def close(self):
        """What is left open of a closed node: files, and mappings of shared memory."""
        self.node.close()
        files = _files() - self.files_before
        with open("/proc/self/maps") as maps:
            return [files, sum("memfd:tidec" in line for line in maps)]


def _memory(text):
    data = bytes.fromhex(text)
    return (ctypes.c_char * len(data)).from_buffer_copy(data)


def _files():
    return len(os.listdir("/proc/self/fd"))


def _kept_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def main():
    rank = Rank(*sys.argv[1:])
    for line in sys.stdin:
        what, arguments, named = json.loads(line)
        try:
            print(json.dumps([True, getattr(rank, what)(*arguments, **named)]), flush=True)
        except RuntimeError as problem:
            print(json.dumps([False, str(problem)]), flush=True)


main()
