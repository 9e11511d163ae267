"""The models that are measured: (function, example arguments), weights made from a seed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Model = tuple[Callable[..., Any], list[np.ndarray]]


class Weights:
    """Random weights, one after the other."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 0.02) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)


def layer_norm(x: Any, p: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p[0] + p[1]


def norm(w: Weights, n: int) -> tuple[np.ndarray, np.ndarray]:
    return 1 + w(n), w(n)


def dense(w: Weights, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    return w(n, m), w(m)


def apply(x: Any, p: Any) -> Any:
    return x @ p[0] + p[1]


def attention(x: Any, p: Any, heads: int, causal: bool) -> Any:
    b, t, d = x.shape
    q, k, v = (a.reshape(b, t, heads, d // heads) for a in jnp.split(apply(x, p["qkv"]), 3, -1))
    return apply(jax.nn.dot_product_attention(q, k, v, is_causal=causal).reshape(b, t, d), p["out"])


def block(w: Weights, d: int) -> dict[str, Any]:
    return {
        "ln1": norm(w, d),
        "ln2": norm(w, d),
        "qkv": dense(w, d, 3 * d),
        "out": dense(w, d, d),
        "up": dense(w, d, 4 * d),
        "down": dense(w, 4 * d, d),
    }


def transformer(x: Any, blocks: list, heads: int, causal: bool) -> Any:
    for p in blocks:
        x = x + attention(layer_norm(x, p["ln1"]), p, heads, causal)
        x = x + apply(jax.nn.gelu(apply(layer_norm(x, p["ln2"]), p["up"])), p["down"])
    return x


def gpt2(layers: int = 12, d: int = 768, heads: int = 12, vocabulary: int = 50257, length: int = 128) -> Model:
    w = Weights()
    tokens, positions, final = w(vocabulary, d), w(1024, d), norm(w, d)
    blocks = [block(w, d) for _ in range(layers)]

    def fn(ids: Any) -> Any:
        x = jnp.take(tokens, ids, axis=0, mode="clip") + positions[: ids.shape[1]]
        x = layer_norm(transformer(x, blocks, heads, True), final)
        return x[:, -1] @ tokens.T

    return fn, [np.random.default_rng(1).integers(0, vocabulary, (1, length), dtype=np.int32)]


def conv(x: Any, kernel: Any, stride: int = 1, groups: int = 1, padding: Any = "SAME") -> Any:
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def vit(layers: int = 12, d: int = 768, heads: int = 12, size: int = 224, patch: int = 16) -> Model:
    w = Weights()
    n = (size // patch) ** 2
    kernel, bias, token, positions = w(patch, patch, 3, d), w(d), w(1, 1, d), w(n + 1, d)
    blocks, final, head = [block(w, d) for _ in range(layers)], norm(w, d), dense(w, d, 1000)

    def fn(image: Any) -> Any:
        x = (conv(image, kernel, patch, padding="VALID") + bias).reshape(image.shape[0], n, d)
        x = jnp.concatenate([jnp.broadcast_to(token, (image.shape[0], 1, d)), x], 1) + positions
        return apply(layer_norm(transformer(x, blocks, heads, False), final)[:, 0], head)

    return fn, [np.random.default_rng(1).standard_normal((1, size, size, 3)).astype(np.float32)]


def resnet50() -> Model:
    w = Weights()

    def unit(size: int, n: int, m: int) -> Any:
        return w(size, size, n, m, scale=0.05), (w(m), 1 + abs(w(m)), 1 + w(m), w(m))

    def conv_bn(x: Any, p: Any, stride: int = 1) -> Any:
        mean, var, scale, bias = p[1]
        return (conv(x, p[0], stride) - mean) * (lax.rsqrt(var + 1e-5) * scale) + bias

    stem, stages, n = unit(7, 3, 64), [], 64
    for m, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(depth):
            stride = 2 if i == 0 and m > 64 else 1
            shortcut = unit(1, n, 4 * m) if i == 0 else None
            stages.append((unit(1, n, m), unit(3, m, m), unit(1, m, 4 * m), shortcut, stride))
            n = 4 * m
    head = dense(w, n, 1000)

    def fn(x: Any) -> Any:
        x = jax.nn.relu(conv_bn(x, stem, 2))
        x = lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for a, b, c, shortcut, stride in stages:
            y = jax.nn.relu(conv_bn(x, a))
            y = conv_bn(jax.nn.relu(conv_bn(y, b, stride)), c)
            x = jax.nn.relu(y + (x if shortcut is None else conv_bn(x, shortcut, stride)))
        return apply(x.mean((1, 2)), head)

    return fn, [np.random.default_rng(1).standard_normal((1, 224, 224, 3)).astype(np.float32)]


def convnext_tiny() -> Model:
    w = Weights()
    stem, stem_norm, stages = (w(4, 4, 3, 96), w(96)), norm(w, 96), []
    widths, depths = (96, 192, 384, 768), (3, 3, 9, 3)
    for i, (d, depth) in enumerate(zip(widths, depths, strict=True)):
        down = None if i == 0 else (norm(w, widths[i - 1]), w(2, 2, widths[i - 1], d), w(d))
        blocks = [(w(7, 7, 1, d), w(d), norm(w, d), dense(w, d, 4 * d), dense(w, 4 * d, d), w(d)) for _ in range(depth)]
        stages.append((down, blocks, d))
    final, head = norm(w, 768), dense(w, 768, 1000)

    def fn(x: Any) -> Any:
        x = layer_norm(conv(x, stem[0], 4, padding="VALID") + stem[1], stem_norm)
        for down, blocks, d in stages:
            if down is not None:
                x = conv(layer_norm(x, down[0]), down[1], 2, padding="VALID") + down[2]
            for kernel, bias, ln, up, narrow, gamma in blocks:
                y = layer_norm(conv(x, kernel, groups=d) + bias, ln)
                x = x + apply(jax.nn.gelu(apply(y, up)), narrow) * gamma
        return apply(layer_norm(x.mean((1, 2)), final), head)

    return fn, [np.random.default_rng(1).standard_normal((1, 224, 224, 3)).astype(np.float32)]


def deep_mlp(layers: int, d: int = 64) -> Model:
    w = Weights()
    stack = [(norm(w, d), dense(w, d, d)) for _ in range(layers)]

    def fn(x: Any) -> Any:
        for ln, p in stack:
            x = x + jax.nn.gelu(apply(layer_norm(x, ln), p))
        return x

    return fn, [np.ones((8, d), np.float32)]


def lstm(length: int = 128, d: int = 256) -> Model:
    w = Weights()
    wi, wh, bias = w(d, 4 * d), w(d, 4 * d), w(4 * d)

    def fn(xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ wi + h @ wh + bias, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], d))
        return lax.scan(step, (zeros, zeros), xs)[1]

    return fn, [np.random.default_rng(1).standard_normal((length, 1, d)).astype(np.float32)]


def flow_solver(steps: int = 200, cells: int = 201) -> Model:
    """A Sod shock tube: Runge-Kutta stages in time steps, Rusanov fluxes, halo cells, float64."""

    def primitive(state: Any) -> tuple:
        rho, momentum, energy = state
        u = momentum / rho
        return rho, u, 0.4 * (energy - 0.5 * rho * u * u)

    def flux(state: Any) -> Any:
        rho, u, p = primitive(state)
        return jnp.stack([rho * u, rho * u * u + p, (state[2] + p) * u])

    def right_side(state: Any) -> Any:
        padded = jnp.zeros((3, cells + 4)).at[:, 2:-2].set(state)
        padded = padded.at[:, :2].set(state[:, :1]).at[:, -2:].set(state[:, -1:])
        left, right = padded[:, 1:-2], padded[:, 2:-1]
        rho, u, p = primitive(padded)
        speed = jnp.abs(u) + jnp.sqrt(1.4 * p / rho)
        fastest = jnp.maximum(speed[1:-2], speed[2:-1])
        f = 0.5 * (flux(left) + flux(right)) - 0.5 * fastest * (right - left)
        return -(f[:, 1:] - f[:, :-1]) * cells

    def fn(state: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            def stage(carry: Any, weights: Any) -> Any:
                a, b = weights
                return a * state + b * (carry + 2e-4 * right_side(carry)), None

            weights = (jnp.array([0.0, 0.75, 1 / 3]), jnp.array([1.0, 0.25, 2 / 3]))
            return lax.scan(stage, state, weights)[0], None

        return lax.scan(step, state, None, length=steps)[0]

    x = np.linspace(0, 1, cells)
    rho, p = np.where(x < 0.5, 1.0, 0.125), np.where(x < 0.5, 1.0, 0.1)
    return fn, [np.stack([rho, np.zeros(cells), p / 0.4])]


MODELS: dict[str, Callable[[], Model]] = {
    "gpt2-small": gpt2,
    "vit-b16": vit,
    "resnet50": resnet50,
    "convnext-tiny": convnext_tiny,
    "lstm-128": lstm,
    "flow-solver": flow_solver,
    **{f"mlp-{n}": functools.partial(deep_mlp, n) for n in (50, 200, 800)},
}
