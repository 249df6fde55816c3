"""The sonnets' transformer without candle: opens a checkpoint with the Python package safetensors and computes the loss on the end of the text.
usage: checkpoint.py CHECKPOINT TEXT

PyTorch's `safetensors.torch.load_file` opens the same file by the same parser, and `load_state_dict` takes it by name. The layers are those of
torch.nn: Embedding, LayerNorm(bias=False), Linear and GELU(approximate="tanh"); NumPy computes them here, in float64.
"""
import json
import math
import sys

import numpy as np
from safetensors.numpy import load_file

HEADS = 4
TEST_SHARE = 10

weights = load_file(sys.argv[1])
text = open(sys.argv[2], encoding="utf-8", newline="").read()
wide = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
context, width = wide["places"].shape


def linear(name, x):
    out = x @ wide[name + ".weight"].T
    return out + wide[name + ".bias"] if name + ".bias" in wide else out


def norm(name, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * wide[name + ".weight"]


def softmax(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def block(name, x):
    heads = lambda part: part.reshape(*part.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)
    q, k, v = map(heads, np.split(linear(name + ".qkv", norm(name + ".norm1", x)), 3, -1))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(width // HEADS)
    scores += np.triu(np.full((context, context), -np.inf), 1)
    mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + linear(name + ".out", mixed)
    return x + linear(name + ".fc2", gelu(linear(name + ".fc1", norm(name + ".norm2", x))))


numbers = {character: number for number, character in enumerate(sorted(set(text)))}
codes = np.array([numbers[character] for character in text])
begins = np.arange(len(codes) - len(codes) // TEST_SHARE, len(codes) - context, context)
places = begins[:, None] + np.arange(context)
x = wide["characters.weight"][codes[places]] + wide["places"]
for number in range(len({name.split(".")[1] for name in wide if name.startswith("blocks.")})):
    x = block(f"blocks.{number}", x)
shares = softmax(linear("head", norm("norm", x)))
of_next = np.take_along_axis(shares, codes[places + 1][..., None], -1)
print(json.dumps({"tensors": len(weights), "bits_a_character": -np.log2(of_next).mean()}))
