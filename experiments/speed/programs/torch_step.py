"""PyTorch's work: the training step of `torch_model`, eager, compiled or in bfloat16; products."""

# pyright: reportMissingImports=false

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
import worker
from torch_model import Attention, Transformer

Work = Callable[[], None]


def main() -> None:
    """Builds the model and serves its work."""
    spec, answers = worker.start()
    torch.manual_seed(0)
    work = {"step": _step, "products": _products}[spec["work"]]
    version = f"PyTorch {torch.__version__}"
    with torch.device(worker.DEVICE):
        built = work(spec["config"], **spec["arguments"])
    worker.serve(answers, built, version, torch.cuda.max_memory_allocated)


def _step(config: dict, *, compiled: bool = False, autocast: bool = False) -> Work:
    """A step with label smoothing and Adam, whose fused form is the fastest that PyTorch has."""
    sizes, data, settings = config["model"], config["data"], config["optimizer"]
    model = Transformer(
        vocab_size=sizes["vocab_size"],
        num_layers=sizes["num_layers"],
        d_model=sizes["d_model"],
        num_heads=sizes["num_heads"],
        d_ff=sizes["d_ff"],
        dropout=sizes["dropout_rate"],
        length=data["row_target_length"],
    )
    for layer in model.modules():
        if isinstance(layer, Attention):
            layer.dropout = sizes["attention_dropout_rate"]
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=1e-4,
        betas=(settings["beta1"], settings["beta2"]),
        eps=settings["epsilon"],
        fused=True,
    )
    size = (data["batch_size"], data["row_target_length"])
    source, target = (torch.randint(1, sizes["vocab_size"], size) for _ in range(2))
    shifted = F.pad(target, (1, 0))[:, :-1]
    smoothing = config["task"]["label_smoothing"]
    lowered = contextlib.nullcontext()
    if autocast:
        lowered = torch.autocast(worker.DEVICE, torch.bfloat16)

    def loss_of() -> torch.Tensor:
        with lowered:
            logits = model(source, shifted)
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            target.flatten(),
            label_smoothing=smoothing,
            ignore_index=0,
        )

    run = torch.compile(loss_of) if compiled else loss_of

    def work() -> None:
        loss = run()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()

    return work


def _products(config: dict, *, shapes: list[tuple[int, int, int]]) -> Work:
    """Each product (m, k) x (k, n), one after the other."""
    dtype = getattr(torch, config["model"]["dtype"])
    pairs = [(torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)) for m, k, n in shapes]

    def work() -> None:
        for a, b in pairs:
            torch.matmul(a, b)

    return work


if __name__ == "__main__":
    main()
