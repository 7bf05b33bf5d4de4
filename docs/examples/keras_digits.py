"""Train a small network on scikit-learn's handwritten digits with ``model.fit``, on any number of processes.

    horocacherun -np 2 python docs/examples/keras_digits.py
    KERAS_BACKEND=torch horocacherun -np 2 python docs/examples/keras_digits.py --num-groups 2

The same script runs with Keras on TensorFlow, torch and JAX. Every process sees its share of the training images. The
last line of output is the accuracy on images that no process has seen. Exits with an error if the processes end with
different parameters.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys

import horocache.keras as hvd
import keras
import numpy as np
from sklearn.datasets import load_digits


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits with horocache and Keras.")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training images (12)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per process and step (32)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one process; scaled by their number")
    parser.add_argument("--warmup-epochs", type=int, default=3, help="epochs until the rate has its full size (3)")
    parser.add_argument("--num-groups", type=int, default=0, help="reduce gradients in this many groups; 0: one by one")
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none", help="gradients on the wire")
    parser.add_argument("--checkpoint", help="file (.keras) in which rank 0 keeps the best model")
    parser.add_argument("--seed", type=int, default=42, help="of the initial parameters and the order of the images")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.batch_size < 1 or options.warmup_epochs < 1 or options.num_groups < 0:
        parser.error("--epochs, --batch-size and --warmup-epochs are at least 1, --num-groups at least 0")
    if not 0 < options.lr < math.inf:
        parser.error("--lr is a positive number")
    if options.checkpoint is not None and not options.checkpoint.endswith(".keras"):
        parser.error("--checkpoint is the name of a file that ends in .keras")
    return options


def load_images(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return this process's share of the training images and labels, and all test images and labels (a fifth).

    The shares are equally long, so that all processes make the same number of steps.
    """
    digits = load_digits()
    images, labels = digits.images[..., np.newaxis].astype("float32") / 16.0, digits.target
    order = np.random.default_rng(seed).permutation(len(images))
    test, train = np.split(order, [len(order) // 5])
    share = train[: len(train) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
    return images[share], labels[share], images[test], labels[test]


def make_model() -> keras.Model:
    """Return a small convolutional network for images of 8 by 8 pixels."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def train(options: argparse.Namespace, model: keras.Model) -> float:
    """Train, and return the accuracy on the test images."""
    images, labels, test_images, test_labels = load_images(options.seed)
    full_rate = options.lr * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(full_rate, momentum=0.9),
        compression=getattr(hvd.Compression, options.compression),
        num_groups=options.num_groups,
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = [
        # The processes start with different parameters: all take the parameters of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Precedes the callbacks that read metrics, so that all processes decide alike.
        hvd.callbacks.MetricAverageCallback(),
        # Grows from one process's rate to the full one: small steps while the parameters are arbitrary.
        hvd.callbacks.LearningRateWarmupCallback(full_rate, options.warmup_epochs),
    ]
    if options.checkpoint is not None and hvd.rank() == 0:
        callbacks.append(hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=options.checkpoint))
    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(images, labels, options.batch_size, options.epochs, verbose=verbose, callbacks=callbacks)
    rows = slice(hvd.rank(), None, hvd.size())  # each process evaluates a part of the test images
    right = (model.predict(test_images[rows], verbose=0).argmax(axis=1) == test_labels[rows]).sum()
    return float(hvd.allreduce(right, op=hvd.Sum, name="right")) / len(test_labels)


def replicas_are_identical(model: keras.Model) -> bool:
    """Return True if all processes have the same bits in their parameters."""
    digest = hashlib.sha256()
    for weights in model.get_weights():
        digest.update(np.ascontiguousarray(weights).tobytes())
    mine = np.frombuffer(digest.digest(), dtype=np.uint8)[np.newaxis]
    everyone = np.asarray(hvd.allgather(mine, name="digest"))
    return bool((everyone == everyone[0]).all())


def main(arguments: list[str] | None = None) -> int:
    """Run; return 0 if the processes end with the same parameters."""
    options = parse_arguments(arguments)
    hvd.init()
    # Each rank has its own seed on purpose: rank 0's parameters are broadcast.
    keras.utils.set_random_seed(options.seed + hvd.rank())
    model = make_model()
    result = train(options, model)
    if not replicas_are_identical(model):
        print(f"rank {hvd.rank()}: the processes ended with different parameters", file=sys.stderr)
        return 1
    if hvd.rank() == 0:
        print(f"Keras on {keras.config.backend()}: replicas of {hvd.size()} processes are bit-identical")
        print(f"test accuracy {result:.3f}", flush=True)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
