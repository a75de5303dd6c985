"""Which test holds which row of the table of public reports that concerns the adapter. A row whose test goes away is missed here."""
from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Row, report: the test that holds it, and the case of its job where it is one of many.
ROWS: dict[int, tuple[str, str, str]] = {
    3: ("pytorch/pytorch#164554", "test_fsdp.py::test_the_less_common_uses_of_fsdp2_have_stocks_bits", "from meta"),
    7: ("NCAR/miles-credit#416", "test_fsdp_fail.py::test_ranks_with_other_models_are_told_before_any_collective", "other model"),
    10: ("pytorch/pytorch#132934", "test_capture.py::test_a_transposed_view_never_comes_so_far", ""),
    12: ("pytorch/torchtitan#4767", "test_fallback.py::test_what_the_planner_refuses_is_told_as_why_not_tells_it", ""),
    14: ("pytorch/torchtitan#1180", "test_capture.py::test_a_transposed_view_never_comes_so_far", ""),
    22: ("NVIDIA/Megatron-LM#5656", "test_fallback.py::test_more_trainable_parameters_than_a_plan_holds_stay_stock", ""),
    37: ("pytorch/pytorch#177472", "test_fsdp_fail.py::test_a_rank_that_cannot_keeps_all_from_it_in_every_replica", "broken on one rank"),
    45: ("pytorch/pytorch#97191", "test_fsdp_fail.py::test_a_rank_that_is_silent_is_named_by_the_others_who_leave", "stopped"),
    61: ("pytorch/pytorch#158719", "test_fsdp_fail.py::test_ranks_that_use_different_parameters_stop_with_their_names", "other gradients"),
    65: ("NVIDIA-NeMo/Automodel#3373", "test_fsdp.py::test_the_less_common_uses_of_fsdp2_have_stocks_bits", "reentrant"),
    67: ("pytorch/pytorch#153302", "test_fsdp.py::test_the_less_common_uses_of_fsdp2_have_stocks_bits", "resharded to two"),
    71: ("baidu-baige/LoongForge#189", "test_capture.py::test_an_ignored_parameter_is_no_parameter_of_the_group", ""),
    72: ("pytorch/pytorch#144045", "test_fallback.py::test_a_replicated_group_and_one_of_one_rank_gather_nothing", ""),
    75: ("pytorch/pytorch#162338", "test_fsdp.py::test_all_cases_have_stocks_bits", "divide factor 1, sums forced"),
    76: ("pytorch/pytorch#82070", "test_fsdp.py::test_the_less_common_uses_of_fsdp2_have_stocks_bits", "averaging"),
    78: ("huggingface/transformers#45050", "test_fsdp.py::test_all_cases_have_stocks_bits", "frozen and unused"),
    82: ("pytorch/pytorch#186601", "test_fallback.py::test_a_parameter_with_its_own_step_before_the_all_gather_stays_stock", ""),
}
# Not held by a test yet: 1 and 4 (the shapes of the reports), 35 and 43 (need another backend than gloo), 58 (mixed gradients), 68 (ties over groups), 85 (order).


@pytest.mark.parametrize("row", ROWS)
def test_the_row_has_its_test(row):
    _, test, case = ROWS[row]
    file, _, name = test.partition("::")
    text = (HERE / file).read_text()
    assert name in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert not case or f'"{case}"' in text
