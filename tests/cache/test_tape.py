"""The outer form of an archive: one spelling, read by tar, and nothing else is read back."""
from __future__ import annotations

import io
import tarfile

import pytest

from tidec.cache.tape import END, MAX_FILE_BYTES, TapeError, header, members, write

FILES = {"0-a.json": b"{}", "d" * 64 + "/ask.json": b"x" * 512, "d" * 64 + "/block.ag.hpp": b"", "d" * 64 + "/lib/host-x86_64.so": bytes(range(256)) * 5}


def tape(files=FILES):
    out = io.BytesIO()
    for name, data in files.items():
        write(out.write, name, len(data), [data[:7], data[7:]])
    return out.getvalue() + END


def read(data):
    return {m.name: b"".join(m.pieces(100)) for m in members(io.BytesIO(data))}


def refused(data):
    with pytest.raises(TapeError) as caught:
        read(data)
    return caught.value


def test_a_tape_reads_back_and_is_what_tar_reads():
    assert read(tape()) == FILES
    with tarfile.open(fileobj=io.BytesIO(tape())) as other:
        assert {m.name: other.extractfile(m).read() for m in other} == FILES
        assert {(m.mode, m.uid, m.gid, m.uname, m.gname, m.mtime, m.type) for m in other} == {(0o644, 0, 0, "", "", 0, tarfile.REGTYPE)}


def test_a_header_is_the_one_that_the_standard_library_writes():
    info = tarfile.TarInfo("d" * 64 + "/lib/host-x86_64.so")
    info.size = 123456789
    theirs = info.tobuf(tarfile.USTAR_FORMAT)
    ours = header(info.name, info.size)
    # Theirs splits the name where it must, ours after the folder always; ours has zeros for the numbers of a device, as GNU tar does.
    assert len(ours) == len(theirs) == 512 and ours[100:148] == theirs[100:148] and ours[156:329] == theirs[156:329]


def test_no_byte_of_a_tape_can_change_unseen():
    whole = tape()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        try:
            got = read(bytes(changed))
        except TapeError:
            continue
        different = [name for name in FILES if got[name] != FILES[name]]
        assert list(got) == list(FILES) and len(different) == 1, at       # a byte of contents, which its digest shows


def test_a_tape_that_is_cut_or_longer_is_refused():
    whole = tape()
    for length in range(0, len(whole), 97):
        refused(whole[:length])
    for more in (b"\0", END, b"x" * 512):
        assert "does not end" in refused(whole + more).reason
    assert refused(whole[:700]).name == "0-a.json" and "ends in the middle" in refused(whole[:513]).reason


ODD = {
    "link": (dict(type=tarfile.SYMTYPE, linkname="/etc/passwd"), "a symbolic link"),
    "hard link": (dict(type=tarfile.LNKTYPE, linkname="0-a.json"), "a hard link"),
    "folder": (dict(type=tarfile.DIRTYPE), "a folder"),
    "device": (dict(type=tarfile.CHRTYPE), "a device"),
    "block device": (dict(type=tarfile.BLKTYPE), "a device"),
    "pipe": (dict(type=tarfile.FIFOTYPE), "a pipe"),
    "sparse": (dict(type=tarfile.GNUTYPE_SPARSE), "header"),
    "owner": (dict(uid=1), "header"),
    "time": (dict(mtime=1), "header"),
    "mode": (dict(mode=0o755), "header"),
    "set-user-id": (dict(mode=0o4644), "header"),
    "name of an owner": (dict(uname="root"), "header"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_member_of_another_kind_is_refused_by_name(name):
    fields, reason = ODD[name]
    info = tarfile.TarInfo("b.json")
    for field, value in fields.items():
        setattr(info, field, value)
    error = refused(tape({"a.json": b""})[: -len(END)] + info.tobuf(tarfile.USTAR_FORMAT) + END)
    assert error.name.rstrip("/") == "b.json" and reason in error.reason


@pytest.mark.parametrize("name", ["../x", "a/../x", "/etc/passwd", "a//b", "./a", "a/", "", ".hidden", "a/b/c/d", "a b", "a\\b", "C:x", "-rf", "a/.x", "x\n", "\u00fc"])
def test_a_name_that_leads_elsewhere_is_neither_written_nor_read(name):
    with pytest.raises(TapeError):
        header(name, 0)
    info = tarfile.TarInfo(name)
    assert refused(info.tobuf(tarfile.USTAR_FORMAT, "utf-8") + END).reason


def test_names_are_in_order_and_there_once():
    for names in (("b", "a"), ("a", "a")):
        data = b"".join(header(n, 0) for n in names) + END
        assert "twice, or not in its order" in refused(data).reason


def test_names_and_sizes_have_bounds():
    header("p" * 64 + "/" + "n" * 100, MAX_FILE_BYTES)
    for name, size in (("n" * 101, 0), ("p" * 156 + "/n", 0), ("n", MAX_FILE_BYTES + 1), ("n", -1)):
        with pytest.raises(TapeError):
            header(name, size)


@pytest.mark.parametrize("pieces", [[b"abc"], [b"abc", b"de"], [b"abcd", b"e"], []])
def test_contents_of_another_length_than_said_are_refused(pieces):
    with pytest.raises(TapeError, match="changed while"):
        write(io.BytesIO().write, "a", 4, pieces)


def test_other_dialects_of_tar_are_refused():
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as other:
            info = tarfile.TarInfo("a" * 120)
            info.size = 1
            other.addfile(info, io.BytesIO(b"x"))
        assert refused(out.getvalue()).name.startswith(("././@", "./PaxHeaders"))
