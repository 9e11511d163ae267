"""The complementary and the inverse error function."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.polynomial.chebyshev import cheb2poly

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes
from jax2onnx.decompose.special_elementary import at_least_float32, horner


def powers(chebyshev: list[float], terms: int) -> list[float]:
    """The first `terms` of a Chebyshev series as a polynomial, from the highest power to the lowest."""
    return cheb2poly(chebyshev[:terms])[::-1].tolist()


# The Chebyshev series of (|x| + 5/2) * exp(x^2) * erfc(|x|) in y = (|x| - 5/2) / (|x| + 5/2). It was computed with 40
# digits; 11 terms are enough for float32.
ERFC = [
    1.2902866648572717, -0.928062659632869, 0.2391465012523722, -0.040319600567842395,
    0.002772855388549252, 0.0004824705745218763, -0.00011487827843823175, -5.5181084826797454e-06,
    3.780394426025323e-06, 1.0549660085878431e-07, -1.3703150230603065e-07, -6.501049234463565e-09,
    5.393216976020352e-09, 5.528836177050437e-10, -2.083442698386716e-10, -4.2568142479038234e-11,
    6.354938032549719e-12, 2.8331013660882506e-12, -9.429320366899919e-15, -1.557240828525074e-13,
    -2.070492911150502e-14, 5.972542459247917e-15, 2.1577181412195315e-15,
]  # fmt: skip


@decomposes(lax.erfc_p)
@at_least_float32
def erfc(x: Array, **_) -> Array:
    """e^(-x^2) times a series for what remains, so that the tail is as accurate as the middle."""
    z = lax.abs(x)
    r = 1 / (z + 2.5)
    tail = lax.exp(-(z * z)) * r * horner(1 - 5 * r, powers(ERFC, 23 if x.dtype == np.float64 else 11))
    return lax.select(x < 0, 2 - tail, tail)


def _is_gaussian(avals: list, params: dict) -> bool:
    jaxpr = compat.programs.callee(params).jaxpr
    return compat.definitions.is_own_function(jaxpr, "exp_neg_sq") and avals[0].dtype in (np.float32, np.float64)


@decomposes(*compat.kinds.primitives("custom_jvp_call"), when=_is_gaussian)
def gaussian(x: Array, **_) -> Array:
    """e^(-x^2), in the derivatives of the error functions, as accurate as e^x: JAX takes x^2 apart.

    It cuts bits off for that. With Veltkamp's product the high part, too, has half the bits, and an exact square.
    """
    is_double = x.dtype == np.float64
    x = lax.min(lax.abs(x), x.dtype.type(28 if is_double else 11))  # beyond it is 0, also at infinity
    scaled = x * (2 ** (27 if is_double else 12) + 1)
    high = scaled - (scaled - x)
    return lax.exp(-(high * high)) * lax.exp((high - x) * (high + x))


# Mike Giles, "Approximating the erfinv function": (upper limit of w, shift, polynomial), where w = -log(1 - x^2). The
# first polynomial is one in w - shift, the others in sqrt(w) - shift.
ERF_INV_32 = [
    (5.0, 2.5, [
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
        -0.00417768164, 0.246640727, 1.50140941,
    ]),
    (np.inf, 3.0, [
        -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
        0.00943887047, 1.00167406, 2.83297682,
    ]),
]  # fmt: skip
ERF_INV_64 = [
    (6.25, 3.125, [
        -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
        -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
        -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
        1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
        -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352, -0.00074070253416626697512,
        -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356,
    ]),
    (16.0, 3.25, [
        2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
        1.5027403968909827627e-06, -4.013867526981545969e-06, 2.9234449089955446044e-06, 1.2475304481671778723e-05,
        -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
        0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
        0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
    ]),
    (np.inf, 5.0, [
        -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09, -3.7894654401267369937e-09,
        7.6157012080783393804e-09, -1.4960026627149240478e-08, 2.9147953450901080826e-08, -6.7711997758452339498e-08,
        2.2900482228026654717e-07, -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
        7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026, 1.0103004648645343977,
        4.8499064014085844221,
    ]),
]  # fmt: skip


@decomposes(lax.erf_inv_p)
@at_least_float32
def erf_inv(x: Array) -> Array:
    """x times one of several polynomials in w or sqrt(w).

    All of them are computed: in ONNX Runtime a selection costs as much as ten multiplications.
    """
    pieces = ERF_INV_64 if x.dtype == np.float64 else ERF_INV_32
    w = -lax.log(1 - x * x)
    root = lax.sqrt(w)
    *limits, _ = (limit for limit, _, _ in pieces)
    first, *others = (horner((root if i else w) - shift, c) for i, (_, shift, c) in enumerate(pieces))
    factor = others[-1]
    for limit, value in zip(limits[::-1], [first, *others[:-1]][::-1], strict=True):
        factor = lax.select(w < limit, value, factor)
    return lax.select(lax.abs(x) == 1, x * jnp.inf, x * factor)
