"""The same architectures in torch, for the exporter of torch: (module, example arguments)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Model = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, d: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = (
            a.reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for a in self.qkv(self.ln1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Transformer(nn.Module):
    """GPT-2 with `vocabulary`, else a vision transformer."""

    def __init__(self, vocabulary: int | None, layers: int = 12, d: int = 768, heads: int = 12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, d) if vocabulary else None
        self.patches = None if vocabulary else nn.Conv2d(3, d, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        self.positions = nn.Parameter(torch.randn(128 if vocabulary else 197, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, heads, bool(vocabulary)) for _ in range(layers))
        self.final = nn.LayerNorm(d)
        self.head = None if vocabulary else nn.Linear(d, 1000)

    def forward(self, x: Any) -> Any:
        if self.tokens is not None:
            x = self.tokens(x) + self.positions
        else:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        x = self.final(x)
        return x[:, -1] @ self.tokens.weight.T if self.tokens is not None else self.head(x[:, 0])


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, n: int, m: int, stride: int, project: bool):
        super().__init__()
        self.a, self.b, self.c = conv_bn(n, m, 1, 1), conv_bn(m, m, 3, stride), conv_bn(m, 4 * m, 1, 1)
        self.shortcut = conv_bn(n, 4 * m, 1, stride) if project else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))) + self.shortcut(x))


def conv_bn(n: int, m: int, size: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(n, m, size, stride, size // 2, bias=False), nn.BatchNorm2d(m))


def resnet50() -> Model:
    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    n = 64
    for m, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(depth):
            layers.append(Bottleneck(n, m, 2 if i == 0 and m > 64 else 1, i == 0))
            n = 4 * m
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 1000)]
    return nn.Sequential(*layers), (torch.randn(1, 3, 224, 224),)


class Recurrent(nn.Module):
    """The outputs of a recurrent layer."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


def gpt2() -> Model:
    return Transformer(50257), (torch.randint(0, 50257, (1, 128)),)


def vit() -> Model:
    return Transformer(None), (torch.randn(1, 3, 224, 224),)


def recurrent(layer: Callable[..., nn.Module], d: int, **options: Any) -> Model:
    return Recurrent(layer(d, d, **options)), (torch.randn(128, 1, d),)


MODELS: dict[str, Callable[[], Model]] = {
    "gpt2-small": gpt2,
    "vit-b16": vit,
    "resnet50": resnet50,
    "lstm-128": functools.partial(recurrent, nn.LSTM, 256),
    "bi-gru-128": functools.partial(recurrent, nn.GRU, 128, bidirectional=True),
}
