"""Hugging Face's work: `generate` of Marian and of GPT-2, with random weights of the same size."""

# pyright: reportMissingImports=false

import importlib
from typing import Any

import torch
import worker

# Its types are not looked at: pyright would read thousands of files for them.
transformers: Any = importlib.import_module("transformers")


def main() -> None:
    """Builds the model and serves its decoding."""
    spec, answers = worker.start()
    torch.manual_seed(0)
    config, tokens = spec["config"], spec["arguments"]["tokens"]
    sizes, data, settings = config["model"], config["data"], config["decode"]
    decoder_only = sizes["architecture"] == "decoder_only"
    width = data["max_target_length" if decoder_only else "max_source_length"]
    model: Any = (_gpt2 if decoder_only else _marian)(sizes, width + tokens)
    model.to(worker.DEVICE, getattr(torch, sizes["dtype"])).eval()
    size = (data["batch_size"], width)
    prompt = torch.randint(3, sizes["vocab_size"], size, device=worker.DEVICE)
    how: dict[str, Any] = {
        "beam": {
            "num_beams": settings["beam_size"],
            "length_penalty": settings["length_penalty"],
            "do_sample": False,
        },
        "greedy": {"num_beams": 1, "do_sample": False},
        "sample": {
            "num_beams": 1,
            "do_sample": True,
            "temperature": settings["temperature"],
            "top_k": settings["top_k"],
            "top_p": settings["top_p"],
        },
    }[settings["method"]]
    added = width if decoder_only else 1

    @torch.inference_mode()
    def work() -> None:
        ids = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            **how,
        )
        assert ids.shape[1] - added == tokens, f"{ids.shape[1] - added} tokens, not {tokens}"

    versions = f"transformers {transformers.__version__}, PyTorch {torch.__version__}"
    worker.serve(answers, work, versions, torch.cuda.max_memory_allocated)


def _marian(sizes: dict, positions: int) -> Any:
    config = transformers.MarianConfig(
        vocab_size=sizes["vocab_size"],
        d_model=sizes["d_model"],
        encoder_layers=sizes["num_layers"],
        decoder_layers=sizes["num_layers"],
        encoder_attention_heads=sizes["num_heads"],
        decoder_attention_heads=sizes["num_heads"],
        encoder_ffn_dim=sizes["d_ff"],
        decoder_ffn_dim=sizes["d_ff"],
        activation_function="relu",
        max_position_embeddings=positions,
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=1,
        forced_eos_token_id=None,
        decoder_start_token_id=0,
    )
    return transformers.MarianMTModel(config)


def _gpt2(sizes: dict, positions: int) -> Any:
    config = transformers.GPT2Config(
        vocab_size=sizes["vocab_size"],
        n_positions=positions,
        n_embd=sizes["d_model"],
        n_layer=sizes["num_layers"],
        n_head=sizes["num_heads"],
        n_inner=sizes["d_ff"],
        bos_token_id=2,
        eos_token_id=1,
        pad_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


if __name__ == "__main__":
    main()
