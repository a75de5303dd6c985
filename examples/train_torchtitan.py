"""Trains the debug model of torchtitan 0.3.0 on CPU processes, with FSDP2's stock collectives or with tidec's: one line differs.

    pip install torchtitan==0.3.0 triton
    torchrun --nproc-per-node 4 examples/train_torchtitan.py              stock
    torchrun --nproc-per-node 4 examples/train_torchtitan.py --tidec      by plans

The one line goes behind `trainer = config.build()` in torchtitan/train.py. That trainer asks for an accelerator: all else in this file stands for what a
CPU, torch 2.13, or the package lacks.
"""
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import create_mask

WORDS = 97


def stand_in_for_a_gpu() -> None:
    """What torchtitan takes from torch.cuda when it is imported."""
    import torchtitan.tools.utils as utils

    about = SimpleNamespace(total_memory=2**34, name="CPU")
    utils.device_type, utils.get_local_device = "cpu", lambda: torch.device("cpu")
    utils.device_module = SimpleNamespace(
        set_device=lambda _: None, synchronize=lambda: None, current_device=lambda: None, device_count=lambda: 1, get_device_name=lambda _=None: about.name,
        get_device_properties=lambda _=None: about, reset_peak_memory_stats=lambda: None, empty_cache=lambda: None, memory_stats=lambda _=None: {})
    # torch 2.13 has no set_timeout, and gloo's barrier takes no devices.
    barrier = dist.barrier
    dist.barrier, dist.set_timeout = lambda *args, device_ids=None, **others: barrier(*args, **others), lambda *_: None


def attention(q, k, v, *, block_mask, scale, enable_gqa, **_):
    """FlexAttention has no backward pass on CPUs."""
    mask = create_mask(block_mask.mask_mod, q.shape[0], 1, q.shape[2], k.shape[2], device="cpu")
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), SimpleNamespace(lse=None)


def write_data(folder: Path) -> None:
    """Made text and a tokenizer of its words; the package has neither."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    lines = (json.dumps({"text": " ".join(f"w{(7 * i + j * j) % WORDS}" for j in range(300))}) for i in range(400))
    (folder / "text.jsonl").write_text("\n".join(lines))
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator([" ".join(f"w{i}" for i in range(WORDS))], trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>", "</s>"]))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def config_of(folder: Path, steps: int):
    """The debug model, short sequences of made text, and FSDP2 without DTensor parameters."""
    from datasets import load_dataset
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    FlexAttention._compiled_flex_attn = staticmethod(attention)
    DATASETS["made"] = DatasetConfig(path=str(folder / "text.jsonl"), loader=lambda path: load_dataset("json", data_files=path, split="train"),
                                     sample_processor=lambda sample: sample["text"])
    config = llama3_debugmodel()
    config.hf_assets_path, config.dataloader.dataset, config.dump_folder = str(folder), "made", str(folder / "dump")
    config.training.seq_len, config.training.local_batch_size, config.training.steps = 128, 2, steps
    config.training.disable_cuda_graphs, config.parallelism.spmd_backend, config.debug.seed = True, "partial_dtensor", 7
    config.validator.enable = config.checkpoint.enable = False
    config.comm.trace_buf_size = 0
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidec", action="store_true", help="run the collectives by plans")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    stand_in_for_a_gpu()
    from torchtitan.tools.logging import init_logger

    init_logger()
    with TemporaryDirectory() as name:
        # Every rank writes its own: the text is the same.
        write_data(Path(name))
        trainer = config_of(Path(name), options.steps).build()
        if options.tidec:
            import tidec

            tidec.install(trainer.model_parts[0])         # the one line
        else:
            # torchtitan divides by a factor of 1, which gloo cannot do in a reduce-scatter.
            for module in trainer.model_parts[0].modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
        trainer.train()
        if options.tidec and int(os.environ["RANK"]) == 0:
            print(tidec.report(trainer.model_parts[0]))
        trainer.close()
        # As in train_fsdp2.py: threads of gloo's are done with tensors before Python ends.
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
