"""Train a small network on scikit-learn's handwritten digits, on any number of processes.

    horocacherun -np 2 python docs/examples/torch_digits.py
    torchrun --nproc-per-node 2 docs/examples/torch_digits.py --num-groups 2 --compression fp16
    horocacherun -np 2 python docs/examples/torch_digits.py --device cuda

Every process sees its share of the training images. The last line of output is the accuracy on images that no process
has seen. Exits with an error if the processes end with different parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import horocache.torch as hvd
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from torch import nn


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits with horocache.")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training images (15)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per process and step (32)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one process; scaled by their number")
    parser.add_argument(
        "--warmup-epochs", type=int, default=3, help="epochs over which the rate grows to its full size"
    )
    parser.add_argument("--num-groups", type=int, default=0, help="reduce gradients in this many groups; 0: one by one")
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none", help="gradients on the wire")
    parser.add_argument("--clip", type=float, default=5.0, help="largest norm of the gradient (5)")
    parser.add_argument("--checkpoint", type=Path, help="file that rank 0 writes after each epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    parser.add_argument("--device", default="cpu", help="where to train: cpu (the default) or cuda, a GPU per process")
    parser.add_argument("--seed", type=int, default=42, help="of the initial parameters and the order of the images")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.batch_size < 1 or options.warmup_epochs < 0 or options.num_groups < 0:
        parser.error("--epochs and --batch-size are at least 1, --warmup-epochs and --num-groups at least 0")
    if not 0 < options.lr < math.inf or not options.clip > 0:
        parser.error("--lr and --clip are positive numbers")
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint")
    if options.checkpoint is not None and not options.checkpoint.absolute().parent.is_dir():
        parser.error(f"there is no folder {options.checkpoint.absolute().parent} for the checkpoint")
    return options


class ShardedSampler(torch.utils.data.Sampler[int]):
    """This process's share of the images, in an order that all processes shuffle alike, differently in each epoch.

    The shares are equally long, so that all processes make the same number of steps. A few images are seen twice if the
    number of images is not a multiple of the number of processes.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        self.epoch = 0
        self.share: int = math.ceil(length / hvd.size())

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the images by ``epoch``."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Return the numbers of this process's images."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        order += order[: self.share * hvd.size() - self.length]
        return iter(order[hvd.rank() :: hvd.size()])

    def __len__(self) -> int:
        return self.share


def load_images(seed: int) -> tuple[torch.utils.data.TensorDataset, torch.Tensor, torch.Tensor]:
    """Return training set, test images (a fifth of all) and test labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return torch.utils.data.TensorDataset(images[train], labels[train]), images[test], labels[test]


def choose_device(kind: str) -> torch.device:
    """Return this process's device; processes share a GPU if there are more of them than GPUs."""
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("--device cuda needs a GPU, and a torch that is built for it")
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    return torch.device(kind)


def make_model() -> nn.Module:
    """Return a small convolutional network for images of 8 by 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@contextlib.contextmanager
def progress_bar(steps: int) -> Iterator[Callable[[float], None]]:
    """Yield a function to call with the loss after each step; only rank 0 shows a bar."""
    if hvd.rank() != 0:
        yield lambda loss: None
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns) as bar:
        task = bar.add_task("training", total=steps)
        yield lambda loss: bar.update(task, advance=1, description=f"loss {loss:.3f}")


def save(path: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint; an interrupted write leaves no incomplete file at ``path``."""
    unfinished = path.with_suffix(path.suffix + ".part")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(path)


def restore(options: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Let rank 0 read the checkpoint, if requested, and send its state to all processes; return the next epoch."""
    epoch = 0
    if hvd.rank() == 0 and options.resume and options.checkpoint.exists():
        checkpoint = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        epoch = checkpoint["epoch"] + 1
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return int(hvd.broadcast_object(epoch, root_rank=0, name="epoch"))


def train(
    options: argparse.Namespace, model: nn.Module, dataset: torch.utils.data.TensorDataset, device: torch.device
) -> None:
    """Train from the checkpoint's epoch, or from the first one, to the last."""
    plain = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, options.compression),
        num_groups=options.num_groups,
    )
    first_epoch = restore(options, model, optimizer)
    sampler = ShardedSampler(len(dataset), options.seed)
    loader = torch.utils.data.DataLoader(dataset, batch_size=options.batch_size, sampler=sampler)
    full_rate = options.lr * hvd.size()
    warmup_steps = max(1, options.warmup_epochs * len(loader))
    with progress_bar(max(0, options.epochs - first_epoch) * len(loader)) as advance:
        for epoch in range(first_epoch, options.epochs):
            sampler.set_epoch(epoch)
            for step, (images, labels) in enumerate(loader, start=epoch * len(loader) + 1):
                for group in optimizer.param_groups:
                    # Grows from one process's rate to the full one: small steps while the parameters are arbitrary.
                    group["lr"] = options.lr + (full_rate - options.lr) * min(1.0, step / warmup_steps)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()  # type: ignore[no-untyped-call]
                # Clipping applies to the mean of all processes' gradients, so the gradients are reduced first.
                optimizer.synchronize()
                torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
                with optimizer.skip_synchronize():
                    optimizer.step()
                advance(loss.item())
            if options.checkpoint is not None and hvd.rank() == 0:
                save(options.checkpoint, epoch, model, optimizer)


def replicas_are_identical(model: nn.Module) -> bool:
    """Return True if all processes have the same bits in their parameters."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    mine = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).unsqueeze(0)
    everyone = hvd.allgather(mine, name="digest")
    return bool((everyone == everyone[0]).all())


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, device: torch.device) -> float:
    """Return the share of test images that the model recognizes; each process evaluates a part of them."""
    rows = slice(hvd.rank(), None, hvd.size())
    with torch.no_grad():
        right = (model(images[rows].to(device)).argmax(dim=1) == labels[rows].to(device)).sum()
    return float(hvd.allreduce(right, op=hvd.Sum, name="right")) / len(labels)


def main(arguments: list[str] | None = None) -> int:
    """Run; return 0 if the processes end with the same parameters."""
    options = parse_arguments(arguments)
    hvd.init()
    # Each rank has its own seed on purpose: rank 0's parameters are broadcast.
    torch.manual_seed(options.seed + hvd.rank())
    dataset, test_images, test_labels = load_images(options.seed)
    device = choose_device(options.device)
    model = make_model().to(device)
    train(options, model, dataset, device)
    if not replicas_are_identical(model):
        print(f"rank {hvd.rank()}: the processes ended with different parameters", file=sys.stderr)
        return 1
    result = accuracy(model, test_images, test_labels, device)
    if hvd.rank() == 0:
        print(f"replicas of {hvd.size()} processes are bit-identical")
        print(f"test accuracy {result:.3f}", flush=True)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
