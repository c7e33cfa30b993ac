"""nanoGPT's work: a step of its model.py, from a checkout, as its train.py makes one."""

# pyright: reportMissingImports=false

import contextlib
import sys

import torch
import worker


def main() -> None:
    """Builds the model and serves its step."""
    spec, answers = worker.start()
    sys.path.insert(0, spec["arguments"]["checkout"])
    from model import GPT, GPTConfig

    torch.manual_seed(0)
    sizes, data = spec["config"]["model"], spec["config"]["data"]
    config = GPTConfig(
        block_size=data["row_target_length"],
        vocab_size=sizes["vocab_size"],
        n_layer=sizes["num_layers"],
        n_head=sizes["num_heads"],
        n_embd=sizes["d_model"],
        dropout=sizes["dropout_rate"],
    )
    model = GPT(config).to(worker.DEVICE)
    for layer in model.transformer.h:
        layer.attn.dropout = sizes["attention_dropout_rate"]
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), worker.DEVICE)
    for group in optimizer.param_groups:  # its own is fused on a GPU alone
        group["fused"] = group["fused"] or spec["arguments"].get("fused", False)
    call = torch.compile(model) if spec["arguments"].get("compiled") else model
    size = (data["batch_size"], data["row_target_length"] + 1)
    tokens = torch.randint(1, sizes["vocab_size"], size, device=worker.DEVICE)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    context = contextlib.nullcontext()  # train.py's on a CPU
    if spec["arguments"].get("autocast"):
        context = torch.autocast(worker.DEVICE, torch.bfloat16)

    def work() -> None:
        with context:
            _, loss = call(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    version = f"PyTorch {torch.__version__}"
    worker.serve(answers, work, version, torch.cuda.max_memory_allocated)


if __name__ == "__main__":
    main()
