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


def unet(size: int = 128, width: int = 32, out: int = 3) -> tuple[Callable[..., Any], Callable[..., np.ndarray]]:
    """An encoder and decoder with two levels, pooling, transposed convolutions and skips; and a source of weights."""
    w = Weights()

    def pair(n: int, m: int) -> list[Any]:
        return [(w(3, 3, n, m, scale=0.1), w(m)), (w(3, 3, m, m, scale=0.1), w(m))]

    encoder, bottom = [pair(3, width), pair(width, 2 * width)], pair(2 * width, 4 * width)
    up = [w(2, 2, 4 * width, 2 * width, scale=0.1), w(2, 2, 2 * width, width, scale=0.1)]
    decoder, head = [pair(4 * width, 2 * width), pair(2 * width, width)], w(1, 1, width, out, scale=0.1)

    def convs(x: Any, p: Any, shift: Any = 0.0) -> Any:
        for kernel, bias in p:
            x = jax.nn.silu(conv(x, kernel) + bias + shift)
        return x

    def fn(x: Any, shift: Any = 0.0) -> Any:
        skips = []
        for p in encoder:
            x = convs(x, p)
            skips.append(x)
            x = lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = convs(x, bottom, shift)
        for kernel, p, skip in zip(up, decoder, reversed(skips), strict=True):
            x = lax.conv_transpose(x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = convs(jnp.concatenate([x, skip], -1), p)
        return conv(x, head)

    return fn, w


def image(size: int, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((batch, size, size, 3)).astype(np.float32)


def segmentation() -> Model:
    fn, _ = unet()
    return lambda x: fn(x), [image(128)]


def diffusion_step(size: int = 64, width: int = 32) -> Model:
    """One DDIM step: the noise that a U-Net sees in an image at a time, taken away."""
    fn, w = unet(size, width)
    embed = dense(w, 64, 4 * width)

    def step(x: Any, t: Any) -> Any:
        angles = t[:, None] * jnp.exp(-jnp.arange(32) * (jnp.log(10000.0) / 32))
        shift = apply(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1), embed)
        noise = fn(x, shift[:, None, None, :])
        now, then = (jnp.cos(u / 1000 * jnp.pi / 2)[:, None, None, None] ** 2 for u in (t, t - 20))
        clean = (x - jnp.sqrt(1 - now) * noise) / jnp.sqrt(now)
        return jnp.sqrt(then) * jnp.clip(clean, -1, 1) + jnp.sqrt(1 - then) * noise

    return step, [image(size), np.float32([500.0])]


def mixer(layers: int = 8, d: int = 512, size: int = 224, patch: int = 16) -> Model:
    w = Weights()
    n = (size // patch) ** 2
    kernel, head, final = w(patch, patch, 3, d), dense(w, d, 1000), norm(w, d)
    blocks = [
        (norm(w, d), dense(w, n, 256), dense(w, 256, n), norm(w, d), dense(w, d, 4 * d), dense(w, 4 * d, d))
        for _ in range(layers)
    ]

    def fn(x: Any) -> Any:
        x = conv(x, kernel, patch, padding="VALID").reshape(x.shape[0], n, d)
        for ln1, a, b, ln2, c, e in blocks:
            y = layer_norm(x, ln1).swapaxes(1, 2)
            x = x + apply(jax.nn.gelu(apply(y, a)), b).swapaxes(1, 2)
            x = x + apply(jax.nn.gelu(apply(layer_norm(x, ln2), c)), e)
        return apply(layer_norm(x, final).mean(1), head)

    return fn, [image(size)]


def bidirectional_gru(length: int = 128, d: int = 128) -> Model:
    w = Weights()
    cells = [(w(d, 3 * d), w(d, 3 * d), w(3 * d), w(d)) for _ in range(2)]

    def run(xs: Any, p: Any, reverse: bool) -> Any:
        wi, wh, bias, bias_n = p

        def step(h: Any, x: Any) -> Any:
            xr, xz, xn = jnp.split(x @ wi + bias, 3, -1)
            hr, hz, hn = jnp.split(h @ wh, 3, -1)
            r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
            h = (1 - z) * jnp.tanh(xn + r * (hn + bias_n)) + z * h
            return h, h

        return lax.scan(step, jnp.zeros((xs.shape[1], d)), xs, reverse=reverse)[1]

    def fn(xs: Any) -> Any:
        return jnp.concatenate([run(xs, cells[0], False), run(xs, cells[1], True)], -1)

    return fn, [np.random.default_rng(1).standard_normal((length, 1, d)).astype(np.float32)]


def experts(tokens: int = 128, d: int = 512, count: int = 8, chosen: int = 2) -> Model:
    """A mixture-of-experts block: each token goes to the best two of eight."""
    w = Weights()
    router, up, down, ln = w(d, count), w(count, d, 2 * d), w(count, 2 * d, d), norm(w, d)

    def fn(x: Any) -> Any:
        y = layer_norm(x, ln)
        best, index = lax.top_k(jax.nn.softmax(y @ router), chosen)
        gates = (jax.nn.one_hot(index, count) * (best / best.sum(-1, keepdims=True))[..., None]).sum(1)
        inner = jax.nn.gelu(jnp.einsum("td,edf->etf", y, up))
        return x + jnp.einsum("etf,efd,te->td", inner, down, gates)

    return fn, [np.random.default_rng(1).standard_normal((tokens, d)).astype(np.float32)]


def neural_ode(steps: int = 50, d: int = 64, batch: int = 32) -> Model:
    """A vector field that is a small network, integrated by the classical Runge-Kutta method."""
    w = Weights()
    a, b = dense(w, d, 2 * d), dense(w, 2 * d, d)

    def field(x: Any) -> Any:
        return apply(jnp.tanh(apply(x, a)), b)

    def fn(x: Any) -> Any:
        h = 1.0 / steps

        def step(_: Any, x: Any) -> Any:
            k1 = field(x)
            k2 = field(x + h / 2 * k1)
            k3 = field(x + h / 2 * k2)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + field(x + h * k3))

        return lax.fori_loop(0, steps, step, x)

    return fn, [np.random.default_rng(1).standard_normal((batch, d)).astype(np.float32)]


def cnn_training_step(batch: int = 32) -> Model:
    """Forward, backward and an update with momentum of a small image classifier."""
    w = Weights()
    params = [w(3, 3, 1, 16, scale=0.1), w(16), w(3, 3, 16, 32, scale=0.1), w(32), w(7 * 7 * 32, 10), w(10)]
    momenta = [np.zeros_like(p) for p in params]

    def loss(params: Any, x: Any, labels: Any) -> Any:
        for kernel, bias in (params[:2], params[2:4]):
            x = jax.nn.relu(conv(x, kernel) + bias)
            x = lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = x.reshape(x.shape[0], -1) @ params[4] + params[5]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    def fn(x: Any, labels: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, labels)
        moved = [0.9 * m + g for m, g in zip(momenta, grads, strict=True)]
        return value, [p - 0.01 * m for p, m in zip(params, moved, strict=True)], moved

    rng = np.random.default_rng(1)
    return fn, [rng.standard_normal((batch, 28, 28, 1)).astype(np.float32), rng.integers(0, 10, batch, dtype=np.int32)]


MODELS: dict[str, Callable[[], Model]] = {
    "gpt2-small": gpt2,
    "vit-b16": vit,
    "resnet50": resnet50,
    "convnext-tiny": convnext_tiny,
    "u-net": segmentation,
    "mlp-mixer": mixer,
    "lstm-128": lstm,
    "bi-gru-128": bidirectional_gru,
    "experts": experts,
    "diffusion-step": diffusion_step,
    "neural-ode": neural_ode,
    "flow-solver": flow_solver,
    "cnn-training": cnn_training_step,
    **{f"mlp-{n}": functools.partial(deep_mlp, n) for n in (50, 200, 800)},
}
