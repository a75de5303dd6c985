"""Which test holds which row of the table of public reports that concerns the adapter. A row whose test goes away is missed here."""
from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Row, report: the tests that hold it, each with the case of its job where it is one of many ("" = it is not).
ROWS: dict[int, tuple[str, tuple[tuple[str, str], ...]]] = {
    1: ("pytorch/pytorch#137342", (("test_fsdp.py::test_ranks_without_rows_signal_and_wait_like_the_rest", "two rows"),)),
    3: ("pytorch/pytorch#164554", (("test_fsdp.py::test_the_less_common_uses_of_fsdp2_have_stocks_bits", "from meta"),)),
    4: ("Lightning-AI/lightning-thunder#248", (("test_fsdp.py::test_rows_that_ranks_do_not_divide_are_one_view_of_the_landing", "long head"),)),
    7: ("NCAR/miles-credit#416", (("test_fsdp_fail.py::test_ranks_with_other_models_are_told_before_any_collective", "other model"),)),
    10: ("pytorch/pytorch#132934", (("test_capture.py::test_a_transposed_view_never_comes_so_far", ""),)),
    12: ("pytorch/torchtitan#4767", (("test_fallback.py::test_what_the_planner_refuses_is_told_as_why_not_tells_it", ""),)),
    14: ("pytorch/torchtitan#1180", (("test_capture.py::test_a_transposed_view_never_comes_so_far", ""),)),
    22: ("NVIDIA/Megatron-LM#5656", (("test_fallback.py::test_more_trainable_parameters_than_a_plan_holds_stay_stock", ""),)),
    # The host target drives no network: the class is set where a bundle for GPUs is opened, and a wait that never ends is ended here as there.
    29: ("NVIDIA/nccl#2383", (("test_environment.py::test_gpus_send_in_the_class_of_the_host", ""),
                              ("test_environment.py::test_without_a_known_class_of_the_host_none_is_set", ""),
                              ("test_node.py::test_who_waits_takes_no_core_and_lets_python_go_on", ""))),
    32: ("NVIDIA/nccl#2238", (("test_environment.py::test_what_somebody_set_stays_and_is_named", ""),)),
    35: ("pytorch/pytorch#188567", (("test_fsdp.py::test_reports_of_four_ranks_have_stocks_bits", "fresh group"),)),
    37: ("pytorch/pytorch#177472", (("test_fsdp_fail.py::test_a_rank_that_cannot_keeps_all_from_it_in_every_replica", "broken on one rank"),)),
    # The host target loads no NCCL; which one a process loads is told by the command.
    40: ("NVIDIA/nccl#1784", (("../commands/test_doctor.py::test_the_nccl_that_is_loaded_is_named_with_its_version_and_its_place", ""),)),
    43: ("pytorch/pytorch#191951", (("test_fallback.py::test_a_backend_without_a_method_leaves_all_stock", ""),
                                    ("test_fallback.py::test_a_process_group_without_a_method_is_no_crash", ""))),
    45: ("pytorch/pytorch#97191", (("test_fsdp_fail.py::test_a_rank_that_is_silent_is_named_by_the_others_who_leave", "stopped"),)),
    58: ("pytorch/pytorch#196996", (("test_fsdp.py::test_reports_of_four_ranks_have_stocks_bits", "mixed"),)),
    61: ("pytorch/pytorch#158719", (("test_fsdp_fail.py::test_ranks_that_use_different_parameters_stop_with_their_names", "other gradients"),
                                    ("test_fsdp_fail.py::test_what_a_rank_does_not_use_counts_as_zero_where_fsdp2_is_told_so", "unused as zero"))),
    65: ("NVIDIA-NeMo/Automodel#3373", (("test_fsdp.py::test_the_less_common_uses_of_fsdp2_have_stocks_bits", "reentrant"),)),
    67: ("pytorch/pytorch#153302", (("test_fsdp.py::test_the_less_common_uses_of_fsdp2_have_stocks_bits", "resharded to two"),)),
    68: ("huggingface/accelerate#4171", (("test_capture.py::test_a_tied_tensor_is_one_parameter_with_two_names", ""),
                                         ("test_capture.py::test_a_tensor_that_two_groups_share_is_refused_by_fsdp2_itself", ""),
                                         ("test_fsdp.py::test_reports_of_four_ranks_have_stocks_bits", "tied"))),
    71: ("baidu-baige/LoongForge#189", (("test_capture.py::test_an_ignored_parameter_is_no_parameter_of_the_group", ""),
                                            ("test_fsdp.py::test_an_ignored_parameter_keeps_the_gradient_of_its_rank", "ignored"))),
    72: ("pytorch/pytorch#144045", (("test_fsdp.py::test_on_one_rank_the_gradient_is_the_local_one", "alone"),
                                    ("test_fallback.py::test_a_replicated_group_and_one_of_one_rank_gather_nothing", ""))),
    75: ("pytorch/pytorch#162338", (("test_reduce.py::test_scales_are_those_of_fsdp2", ""), ("test_fsdp.py::test_reports_of_four_ranks_have_stocks_bits", "divided"),
                                    ("test_fsdp.py::test_all_cases_have_stocks_bits", "divide factor 1, sums forced"))),
    76: ("pytorch/pytorch#82070", (("test_fsdp.py::test_a_copy_of_the_state_has_nothing_of_the_arena", "copied"),
                                   ("test_fsdp.py::test_the_less_common_uses_of_fsdp2_have_stocks_bits", "averaging"))),
    78: ("huggingface/transformers#45050", (("test_fsdp.py::test_all_cases_have_stocks_bits", "frozen and unused"),)),
    82: ("pytorch/pytorch#186601", (("test_fallback.py::test_a_parameter_with_its_own_step_before_the_all_gather_stays_stock", ""),
                                    ("test_fsdp.py::test_reports_of_four_ranks_have_stocks_bits", "compiling"),
                                    ("../cases/test_cases_interpret.py::test_row_82_two_live_calls_in_one_landing_are_refused", ""))),
    83: ("ROCm/pytorch#3501", (("test_versions.py::test_the_first_thing_that_differs_is_named", ""),
                               ("test_reads.py::test_a_group_that_lacks_one_stays_stock", ""),
                               ("test_versions.py::test_under_signatures_of_no_version_nothing_is_touched_and_stock_goes_on", "unexpected"))),
    85: ("pytorch/pytorch#114299", (("test_capture.py::test_offsets_follow_the_order_in_which_fsdp2_gathers", ""),
                                    ("test_fsdp.py::test_all_cases_have_stocks_bits", "plain"))),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_row_has_its_test(row):
    for test, case in ROWS[row][1]:
        file, _, name = test.partition("::")
        text = (HERE / file).read_text()
        assert name in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}, test
        assert not case or f'"{case}"' in text, (test, case)


def test_every_row_that_an_adapter_can_show_has_one():
    """All rows of the table of reports that are marked A: they run under FSDP2 on a CPU."""
    assert set(ROWS) == {1, 3, 4, 7, 10, 12, 14, 22, 29, 32, 35, 37, 40, 43, 45, 58, 61, 65, 67, 68, 71, 72, 75, 76, 78, 82, 83, 85}
