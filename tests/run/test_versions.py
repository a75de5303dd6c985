"""FSDP2's functions are compared with what tidec knows of each torch version, and what differs is named."""
from __future__ import annotations

import inspect
import json
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tidec.run import versions
from tidec.run.versions import FORMS, KNOWN, RESULT_FIELDS, Form, check

MINORS = ("2.11", "2.12", "2.13", "2.14", "2.15")
RECORD = Path(__file__).resolve().parents[3] / "shared" / "prototype" / "fsdp2" / "sigs.json"
# Of that the functions of the table: arguments, and what is returned, as their annotation says it.
KEPT = Path(__file__).parent / "signatures.json"


def form_of(name: str, minor: str) -> Form:
    return [form for since, form in FORMS[name] if MINORS.index(since) <= MINORS.index(minor)][-1]


def function(form: Form, *, is_text: bool = False) -> Callable:
    """A function of this form that does nothing."""
    annotation = f"tuple[{', '.join(['int'] * form.num_returned)}]" if form.num_returned else "None"
    made: dict[str, Callable] = {}
    text = f"def f({', '.join(form.params)}) -> {repr(annotation) if is_text else annotation}: ..."
    exec(compile(text, "f", "exec", dont_inherit=True), made)       # or its annotations would be text, as this file's are
    return made["f"]


def stand_ins(minor: str, *, changed: dict[str, Form | None] = {}, fields: tuple[str, ...] = RESULT_FIELDS, has_loan: bool | None = None) -> dict:
    """What `check` is given: modules whose functions have the forms of a version. changed: other forms, `None` = missing."""
    module = SimpleNamespace(AllGatherResult=namedtuple("AllGatherResult", fields), FSDPParam=type("FSDPParam", (), {}), FSDPParamGroup=type("FSDPParamGroup", (), {}))
    states = SimpleNamespace(FSDPState=type("FSDPState", (), {}))
    for name in FORMS:
        form = changed.get(name, form_of(name, minor))
        if form is not None:
            owner, _, method = name.rpartition(".")
            setattr(getattr(states if owner == "FSDPState" else module, owner) if owner else module, method, staticmethod(function(form)) if owner else function(form))
    loan = {"_swap_data_ptr_": lambda self, other: None} if (minor != "2.11" if has_loan is None else has_loan) else {}
    return {"version": f"{minor}.0", "module": module, "states": states, "storage": type("UntypedStorage", (), loan)}


def test_the_torch_of_the_tests_fits():
    fit = check()
    minor = torch.__version__.rpartition("+")[0].rpartition(".")[0] or torch.__version__.rpartition(".")[0]
    assert fit.differs == "" and fit.warning is None and fit.is_known and fit.version == torch.__version__
    assert fit.num_reduced == (6 if minor in ("2.11", "2.12") else 7) and fit.has_loan == (minor != "2.11")


@pytest.mark.parametrize("minor", MINORS)
def test_every_version_fits_its_own_forms(minor):
    fit = check(**stand_ins(minor))
    assert (fit.differs, fit.warning) == ("", None) and fit.is_known
    assert fit.num_reduced == (6 if minor in ("2.11", "2.12") else 7) and fit.has_loan == (minor != "2.11")


@pytest.mark.parametrize("minor", MINORS)
def test_no_version_is_taken_for_one_that_differs(minor):
    for other in MINORS:
        same = all(form_of(name, minor) == form_of(name, other) for name in FORMS)
        given = {**stand_ins(other, has_loan=True), "version": f"{minor}.0"}
        assert (check(**given).differs == "") == same, other


def test_the_first_thing_that_differs_is_named():
    def differs(minor: str, **options) -> str:
        return check(**stand_ins(minor, **options)).differs

    gather = form_of("foreach_all_gather", "2.13")
    assert differs("2.13", changed={"foreach_all_gather": Form((*gather.params, "layout"))}) == (
        f"foreach_all_gather takes ({', '.join(gather.params)}, layout), not ({', '.join(gather.params)})")
    assert differs("2.14", changed={"foreach_reduce": Form(form_of("foreach_reduce", "2.14").params, 8)}) == "foreach_reduce returns 8 values, not 7"
    assert differs("2.12", changed={"FSDPParam.free_unsharded_param": None}) == "there is no FSDPParam.free_unsharded_param"
    assert differs("2.15", changed={"FSDPState._lazy_init": Form(("self", "*", "is_root"))}) == "FSDPState._lazy_init takes (self, *, is_root), not (self)"
    assert differs("2.13", fields=RESULT_FIELDS[:-1] + ("splits",)).startswith("AllGatherResult has all_gather_output, ")
    assert differs("2.13", has_loan=False) == "UntypedStorage has no _swap_data_ptr_"
    given = stand_ins("2.13")
    del given["module"].FSDPParamGroup
    assert check(**given).differs == "there is no FSDPParamGroup.unshard"
    given["module"].foreach_all_gather = 3
    assert check(**given).differs == "there is no foreach_all_gather"


@pytest.mark.parametrize("version, is_warned", [
    ("2.13.0", False), ("2.13.0+cu130", False), ("2.13.1", True), ("2.14.0a0+git1234", True), ("2.15.2", True), ("2.16.0", True), ("3.0.0", True),
])
def test_a_version_that_fits_and_was_not_looked_at_is_warned_of(version, is_warned):
    minor = version[:4] if version[:4] in MINORS else "2.15"
    fit = check(**{**stand_ins(minor), "version": version})
    assert fit.differs == "" and fit.is_known is not is_warned
    assert (fit.warning is None) is not is_warned
    if is_warned:
        assert str(fit.warning).startswith(f"warning[F307 untested-torch]: torch {version} was not looked at; the functions that tidec uses are as in 2.11.0 to 2.15.0\n  help: ")


@pytest.mark.parametrize("version", ["2.10.2", "1.13.1", "parrot"])
def test_what_is_older_than_the_table_differs(version):
    assert check(**{**stand_ins("2.11"), "version": version}).differs == "it is older than 2.11.0"


def test_returns_are_counted_in_text_and_in_types():
    form = Form(("a",), 7)
    for is_text in (False, True):
        annotation = inspect.signature(function(form, is_text=is_text)).return_annotation
        assert isinstance(annotation, str) == is_text and versions._num_returned(annotation) == 7
    assert versions._num_returned("Tensor | None") == versions._num_returned(None) == versions._num_returned("list[int]") == 0


def test_every_release_of_the_table_has_a_minor_version_of_it():
    assert {known.rpartition(".")[0] for known in KNOWN} == set(MINORS) and list(KNOWN) == sorted(KNOWN)
    assert all([MINORS.index(since) for since, _ in forms] == sorted({MINORS.index(since) for since, _ in forms}) and forms[0][0] == "2.11" for forms in FORMS.values())


def test_the_table_is_the_record():
    record = json.loads(KEPT.read_text())
    assert set(record) == set(FORMS)
    for name in FORMS:
        assert {release.rpartition(".")[0] for release in record[name]} == set(MINORS) and set(record[name]) <= set(KNOWN)
        for release, (params, returned) in record[name].items():
            form = form_of(name, release.rpartition(".")[0])
            assert list(form.params) == params, (name, release)
            assert form.num_returned in (0, returned.count(",") + 1 if returned else 0), (name, release)


@pytest.mark.skipif(not RECORD.is_file(), reason="the whole record is not beside this checkout")
def test_the_record_kept_here_is_of_the_whole_one():
    whole = json.loads(RECORD.read_text())
    assert json.loads(KEPT.read_text()) == {name: {release: [params, returned] for release, (params, _, returned) in whole[name].items()} for name in FORMS}


@pytest.fixture(scope="module")
def installed(long_job) -> dict[str, list[dict]]:
    """fsdp_versions.py: two blocks and the root, three steps of five all-gathers and three reduce-scatters."""
    return long_job("fsdp_versions.py", "as recorded", "unexpected").results


@pytest.mark.slow
def test_under_the_signatures_of_a_version_all_runs_by_plans_with_stocks_bits(installed):
    """The rank itself asserts that after uninstall FSDP2 has the very functions it had."""
    for found in installed["as recorded"]:
        assert found == {
            release: {"is_equal": True, "by_plan": 24, "stock": {}, "returned": 6 if release < "2.13" else 7, "lent by torch": release != "2.11.0"}
            for release in ("2.11.0", "2.12.1", "2.14.1", "2.15.0")}


@pytest.mark.slow
def test_under_signatures_of_no_version_nothing_is_touched_and_stock_goes_on(installed):
    """The rank itself asserts that FSDP2's functions are its own all the time, and compares bits. Without an attribute only that group stays stock."""
    params = ", ".join(form_of("foreach_all_gather", "2.13").params)
    for found in installed["unexpected"]:
        known = f"F305 torch {torch.__version__} is not what tidec knows: "
        assert found["more"] == [f"{known}foreach_all_gather takes ({params}, layout), not ({params})"]
        assert found["missing"] == [f"{known}there is no FSDPParam.reset_sharded_param"]
        assert [reason[:4] for reason in found["attribute"]] == ["F110", "", ""] and "'_reduce_scatter_comm'" in found["attribute"][0]
        # It is the root's: one step of two blocks.
        assert (found["by_plan"], found["stock"]) == (6, {})
